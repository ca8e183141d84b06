"""TandemMQ: a RocketMQ-compatible message broker in Python with a Spark data pipeline."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping

__version__ = "0.1.0"

if sys.flags.optimize:
    # Invariants are asserts; without them a broker could write a log that it would itself refuse to read.
    raise ImportError("tandemmq refuses to run under `python -O`: its invariants are asserts")


def names_on_demand(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package whose names are loaded on first use.

    So a program loads only what it uses, and a part of the package does not load its neighbours.

    package  its `__name__`
    homes    the names by their module, which is below the package, or absolute if it starts with `tandemmq.`
    """
    modules = {
        name: home if home.startswith("tandemmq.") else f"{package}.{home}"
        for home, names in homes.items()
        for name in names
    }

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return load, lambda: sorted({*vars(sys.modules[package]), *modules})
