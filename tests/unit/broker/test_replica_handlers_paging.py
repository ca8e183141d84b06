import pytest

from tandemmq.broker.replica.handlers import PAGE_ENTRY_COUNT_MAX, plan_page, slice_page
from tandemmq.protocol.bodies.codec import DataVersion, encode_body

CURRENT = DataVersion(counter=3, timestamp_ms=9)
SAME = encode_body(CURRENT).decode()
OTHER = encode_body(DataVersion(counter=2, timestamp_ms=9)).decode()


def plan(
    total: int, first: int | None = None, count_max: int | None = None, version: str | None = None
) -> range | None:
    return plan_page(total, CURRENT, first=first, count_max=count_max, version=version)


def test_caller_without_paging_fields_gets_everything() -> None:
    assert plan(10_000) is None


@pytest.mark.parametrize("version", [None, "", " ", OTHER, "nonsense", "{"])
def test_caller_with_another_version_begins_at_the_start(version: str | None) -> None:
    assert plan(100, 40, 10, version) == range(10)


def test_caller_with_the_current_version_goes_on() -> None:
    assert plan(100, 40, 10, SAME) == range(40, 50)
    assert plan(100, 95, 10, SAME) == range(95, 100)


@pytest.mark.parametrize("first", [100, 101, 10**6])
def test_caller_that_has_everything_gets_nothing(first: int) -> None:
    assert plan(100, first, 10, SAME) == range(100, 100)


def test_last_entry_is_not_left_for_a_page_of_its_own() -> None:
    assert plan(21, 0, 10, SAME) == range(10)
    assert plan(21, 10, 10, SAME) == range(10, 21)
    assert plan(2001, 0, 2000, "") == range(2001)


def test_page_size_is_bounded_whatever_is_asked() -> None:
    for count_max in (None, 0, -5, 10**6):
        assert plan(9_000, 0, count_max, "") == range(PAGE_ENTRY_COUNT_MAX)
    assert plan(9_000, -7, 5, SAME) == range(5)


def test_page_is_cut_in_the_order_of_names() -> None:
    assert slice_page({"c": 3, "a": 1, "b": 2}, range(1, 3)) == {"b": 2, "c": 3}
