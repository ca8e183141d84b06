"""Builds the extension in the version of `tandemmq`.

A checkout has that package. A source distribution has not, but knows the version from its metadata.
"""

import re
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
IN_CHECKOUT = HERE.parents[1] / "src/tandemmq/__init__.py"
IN_DISTRIBUTION = HERE / "PKG-INFO"

PLACE, FORM = (
    (IN_DISTRIBUTION, r"^Version: (\S+)$")
    if IN_DISTRIBUTION.exists()
    else (IN_CHECKOUT, r'^__version__ = "([^"]+)"$')
)
FOUND = re.search(FORM, PLACE.read_text("utf-8"), re.MULTILINE)
assert FOUND is not None, f"{PLACE} names the version"
VERSION = FOUND[1]

setup(
    version=VERSION,
    py_modules=[],
    ext_modules=[
        Extension(
            "tandemmq_speedups",
            ["tandemmq_speedups.c"],
            define_macros=[("SPEEDUPS_VERSION", f'"{VERSION}"')],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
        )
    ],
)
