"""The entries in the table of invariants exist."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from sim.cluster.invariants import INVARIANTS, Invariant

TESTS = Path(__file__).parents[1]


def test_every_invariant_has_a_row() -> None:
    assert [one.name for one in INVARIANTS] == [f"I{number}" for number in range(1, 15)]
    assert all(one.checkers or one.tests for one in INVARIANTS)


@pytest.mark.parametrize("invariant", INVARIANTS, ids=lambda one: one.name)
def test_checkers_and_tests_exist(invariant: Invariant) -> None:
    for text in invariant.checkers:
        module, *names = text.split(".")
        assert callable(reduce(getattr, names, import_module(f"sim.cluster.{module}"))), text
    for text in invariant.tests:
        path, _, name = text.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(), text
