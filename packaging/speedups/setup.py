"""Builds the extension with the version of the package `tandemmq` in this checkout."""

import re
from pathlib import Path

from setuptools import Extension, setup

FOUND = re.search(
    r'^__version__ = "([^"]+)"$',
    (Path(__file__).parents[2] / "src/tandemmq/__init__.py").read_text("utf-8"),
    re.MULTILINE,
)
assert FOUND is not None, "the package names its version"
VERSION = FOUND[1]

setup(
    version=VERSION,
    py_modules=[],
    ext_modules=[
        Extension(
            "tandemmq_speedups",
            ["tandemmq_speedups.c"],
            define_macros=[("SPEEDUPS_VERSION", f'"{VERSION}"')],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"],
        )
    ],
)
