"""The fixture of the tests that read the repository."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_collection_while_parsing() -> Iterator[None]:
    """Pauses the garbage collector. A syntax tree is ten thousand objects without a cycle: the collector
    visits them while the tree is built, for two thirds of the time, and finds none to free.
    """
    gc.disable()
    yield
    gc.enable()
