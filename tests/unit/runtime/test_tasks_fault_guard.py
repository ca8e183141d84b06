import pytest

from tandemmq.errors import FlushFailed, LogDiverged
from tandemmq.runtime.tasks import FaultGuard


def fail(error: BaseException) -> None:
    raise error


def test_fault_of_ours_and_fatal_errors_go_to_the_owner() -> None:
    told: list[BaseException] = []
    guard = FaultGuard(told.append)
    for error in (AssertionError("ours"), FlushFailed("disk")):
        guard.run(fail, error)
    assert [type(error) for error in told] == [AssertionError, FlushFailed]


def test_other_errors_go_on() -> None:
    told: list[BaseException] = []
    with pytest.raises(LogDiverged):
        FaultGuard(told.append).run(fail, LogDiverged("theirs"))
    assert told == []


def test_without_an_owner_nothing_is_swallowed() -> None:
    with pytest.raises(AssertionError):
        FaultGuard(None).run(fail, AssertionError("ours"))
