"""Templates that are compiled once for all tests of the console."""

from __future__ import annotations

import functools
from types import CodeType

from jinja2 import Environment

from tandemmq.console.render import make_environment

_compile = Environment.compile


@functools.cache
def _compile_once(source: str, name: str | None, filename: str | None) -> CodeType:
    return _compile(make_environment(), source, name, filename)


def _compile_as_before(
    _environment: Environment, source: str, name: str | None = None, filename: str | None = None
) -> CodeType:
    """Returns the code of a template. Each console has an environment of its own, and all are made alike; a
    process of a user has one console, a process of tests a hundred.
    """
    return _compile_once(source, name, filename)


Environment.compile = _compile_as_before
