"""`stable_order` against numpy's stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.store.key_index import stable_order


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**40), st.integers(-(2**63), 2**63 - 1))))
def test_stable_order_equals_a_stable_argsort(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert stable_order(array).tolist() == array.argsort(kind="stable").tolist()


@pytest.mark.parametrize("value", [2**61 - 1, 2**61, 2**62, 2**63 - 1])
def test_values_that_leave_no_room_for_an_index_are_sorted_too(value: int) -> None:
    array = np.array([value, 0, value, 0], dtype=np.int64)
    assert stable_order(array).tolist() == [1, 3, 0, 2]
