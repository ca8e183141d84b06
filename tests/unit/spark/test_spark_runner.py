"""Tests the runner: it reports each batch once, stops between batches, and restarts only after transient
faults.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

import tandemmq.spark.pipelines.events
import tandemmq.spark.pipelines.runner
from tandemmq.spark.lake.files import Totals
from tandemmq.spark.offsets import measure_lag
from tandemmq.spark.pipelines.events import (
    AuditDone,
    BatchDone,
    Difference,
    Event,
    JsonReporter,
    Restarted,
    ResultReporter,
    SideJudged,
    SideReading,
    Started,
    Stopped,
    TextReporter,
    render_bytes,
)
from tandemmq.spark.pipelines.runner import (
    Job,
    Jobs,
    Runner,
    StopFlag,
    explain_failure,
    is_transient,
)

PASSING = "pages of Java\ntandemmq.errors.BrokerUnreachable: no replica returned T@b:0\n more"
LASTING = "pages of Java\ntandemmq.errors.OffsetOutOfRange: messages were deleted (response code 21)\n more"


@dataclass
class FakeQuery:
    """Finishes one batch per poll, then ends, with or without a failure."""

    batches: list[int]
    failure: str | None = None
    goes_on: bool = False
    done: list[int] = field(default_factory=list)
    is_stopped: bool = False
    looks_while_busy: int = 0

    @property
    def isActive(self) -> bool:
        if self.batches:
            self.done.append(self.batches.pop(0))
            return True
        return self.goes_on and not self.is_stopped

    @property
    def recentProgress(self) -> list[Any]:
        return [
            SimpleNamespace(
                batchId=batch_id,
                numInputRows=10,
                batchDuration=500,
                sources=[SimpleNamespace(endOffset=_offset(batch_id), latestOffset=_offset(9))],
            )
            for batch_id in self.done
        ]

    @property
    def lastProgress(self) -> Any:
        return self.recentProgress[-1] if self.done else None

    @property
    def status(self) -> dict[str, bool]:
        self.looks_while_busy -= 1
        return {"isTriggerActive": self.looks_while_busy >= 0}

    def exception(self) -> str | None:
        return self.failure

    def stop(self) -> None:
        self.is_stopped = True


def _offset(position: int) -> str:
    return json.dumps({"v": 1, "o": {"T": {"b": {"0": position}}}})


class Recorder:
    def __init__(self, on_event: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self._on_event = on_event

    def report(self, event: Event) -> None:
        self.events.append(event)
        self._on_event(event)

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.spark.pipelines.runner, "POLL_S", 0.001)
    monkeypatch.setattr(tandemmq.spark.pipelines.runner, "RESTART_PAUSE_S_MAX", 0.001)


def _run(
    queries: list[FakeQuery],
    recorder: Recorder,
    *,
    restarts_max: int | None = 3,
    stop: StopFlag | None = None,
    is_outdated: Callable[[int], bool] | None = None,
) -> int:
    lake: dict[int, int] = {}
    left = list(queries)

    def measure_all() -> Totals:
        for query in queries:
            lake.update(dict.fromkeys(query.done, 10))
        return Totals(rows=sum(lake.values()), size_bytes=sum(lake.values()) * 2)

    job = Job(
        topic="T",
        out="lake",
        start=lambda: left.pop(0),
        measure_batch=lambda batch_id: Totals(rows=10, size_bytes=20),
        measure_all=measure_all,
        restarts_max=restarts_max,
        is_outdated=is_outdated,
    )
    return Runner(job, recorder, stop or StopFlag()).run()


def test_each_batch_is_told_once_with_totals_and_lag() -> None:
    recorder = Recorder()
    assert _run([FakeQuery([0, 1, 2])], recorder) == 0
    batches = [event for event in recorder.events if isinstance(event, BatchDone)]
    assert [(b.batch, b.rows, b.rows_total, b.lag, b.rate) for b in batches] == [
        (0, 10, 10, 9, 20),
        (1, 10, 20, 8, 20),
        (2, 10, 30, 7, 20),
    ]
    assert isinstance(recorder.events[0], Started)
    assert recorder.events[-1] == Stopped(reason="done", rows_total=30, bytes_total=60)


def test_a_query_that_a_batch_made_outdated_is_started_anew() -> None:
    recorder = Recorder()
    asked: list[int] = []

    def is_outdated(batch_id: int) -> bool:
        asked.append(batch_id)
        return batch_id == 1

    assert _run([FakeQuery([0, 1]), FakeQuery([2])], recorder, is_outdated=is_outdated) == 0
    assert asked == [0, 1, 2]
    assert [type(event) for event in recorder.events] == [
        Started,
        BatchDone,
        BatchDone,
        Started,
        BatchDone,
        Stopped,
    ]


def test_a_batch_that_is_replayed_after_a_restart_is_not_counted_twice() -> None:
    recorder = Recorder()
    assert _run([FakeQuery([0, 1], failure=PASSING), FakeQuery([1, 2])], recorder) == 0
    assert [event.rows_total for event in recorder.events if isinstance(event, BatchDone)] == [10, 20, 20, 30]


def test_a_passing_fault_starts_the_query_again() -> None:
    recorder = Recorder()
    assert _run([FakeQuery([], failure=PASSING), FakeQuery([0])], recorder) == 0
    restarts = [event for event in recorder.events if isinstance(event, Restarted)]
    assert [event.error for event in restarts] == ["no replica returned T@b:0"]


def test_faults_without_progress_end_it_at_last() -> None:
    recorder = Recorder()
    queries = [FakeQuery([], failure=PASSING) for _ in range(9)]
    assert _run(queries, recorder, restarts_max=2) == 1
    assert sum(isinstance(event, Restarted) for event in recorder.events) == 2
    assert recorder.events[-1] == Stopped(
        reason="error", rows_total=0, bytes_total=0, error="no replica returned T@b:0"
    )


def test_a_lasting_fault_ends_it_at_once() -> None:
    recorder = Recorder()
    assert _run([FakeQuery([0], failure=LASTING)], recorder) == 1
    last = recorder.events[-1]
    assert isinstance(last, Stopped)
    assert last.error == "messages were deleted (response code 21)"


def test_a_query_that_cannot_start_is_an_error() -> None:
    def start() -> Any:
        raise RuntimeError("no such thing")

    recorder = Recorder()
    job = Job(
        topic="T",
        out="lake",
        start=start,
        measure_batch=lambda batch_id: Totals(rows=0, size_bytes=0),
        measure_all=lambda: Totals(rows=0, size_bytes=0),
        restarts_max=None,
    )
    assert Runner(job, recorder, StopFlag()).run() == 1
    assert recorder.events == [Stopped(reason="error", rows_total=0, bytes_total=0, error="no such thing")]


def test_a_signal_stops_between_two_batches() -> None:
    stop = StopFlag()
    query = FakeQuery([0, 1, 2], goes_on=True, looks_while_busy=5)
    recorder = Recorder(
        lambda event: stop.on_signal(signal.SIGTERM, None) if isinstance(event, BatchDone) else None
    )
    assert _run([query], recorder, stop=stop) == 0
    assert query.is_stopped
    assert query.looks_while_busy < 0
    last = recorder.events[-1]
    assert isinstance(last, Stopped)
    assert last.reason == "signal"


def test_a_second_signal_does_not_wait() -> None:
    stop = StopFlag()
    stop.on_signal(signal.SIGINT, None)
    assert not stop.is_urgent
    stop.on_signal(signal.SIGINT, None)
    query = FakeQuery([], goes_on=True, looks_while_busy=10**9)
    assert _run([query], Recorder(), stop=stop) == 0
    assert query.is_stopped


def test_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopFlag()
    with stop.listening():
        signal.raise_signal(signal.SIGTERM)
    assert stop.is_set
    assert signal.getsignal(signal.SIGTERM) == before


def test_lag_is_unknown_for_a_replayed_batch() -> None:
    assert measure_lag(_offset(4), _offset(9)) == 5
    assert measure_lag(_offset(4), "null") is None
    assert measure_lag(_offset(4), None) is None


def test_our_error_is_found_in_sparks_pages() -> None:
    assert is_transient(PASSING)
    assert not is_transient(LASTING)
    assert not is_transient("java.lang.OutOfMemoryError")
    assert is_transient("org.apache.spark.SparkException: Python worker failed to connect back.\n at ...")
    assert not is_transient(f"Python worker failed to connect back.\n{LASTING}")
    assert explain_failure("\njava.lang.OutOfMemoryError: heap\n\tat x") == "java.lang.OutOfMemoryError: heap"


DONE = BatchDone(
    batch=3, rows=1000, bytes=2048, rows_total=5000, bytes_total=3 << 20, lag=None, seconds=0.5, rate=2000
)


def test_json_lines_for_programs() -> None:
    stream, errors = io.StringIO(), io.StringIO()
    reporter = JsonReporter(stream, errors)
    reporter.report(DONE)
    reporter.report(Stopped(reason="error", rows_total=5000, bytes_total=1, error="no disk"))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[0] == {
        "event": "batch",
        "batch": 3,
        "rows": 1000,
        "bytes": 2048,
        "rows_total": 5000,
        "bytes_total": 3 << 20,
        "lag": None,
        "seconds": 0.5,
        "rate": 2000,
        "bad": 0,
        "bad_total": 0,
    }
    assert lines[1]["event"] == "stopped"
    assert errors.getvalue() == "error: no disk\n"


def test_results_and_errors_are_told_without_progress_too() -> None:
    """An audit that reports only its exit code lists no difference."""
    stream, errors = io.StringIO(), io.StringIO()
    reporter = ResultReporter(stream, errors)
    reporter.report(SideReading(side="slave 1", tasks_done=1, tasks=2, seconds=1.0))
    reporter.report(DONE)
    reporter.report(
        Difference(
            side="slave 1", problem="differs", topic="T", broker="b", queue=2, offset=7, columns=("body",)
        )
    )
    reporter.report(SideJudged(side="slave 1", is_equal=False, differing=1))
    reporter.report(AuditDone(reason="different"))
    assert stream.getvalue().splitlines() == [
        "slave 1, T@b:2 from offset 7: differs in body",
        "slave 1: NOT EQUAL, 1 different; 0.0 s lost",
        "NOT EQUAL: see above",
    ]
    reporter.report(Stopped(reason="error", rows_total=1, bytes_total=1, error="no disk"))
    assert errors.getvalue() == "error: no disk\n"


def test_a_line_per_event_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    reporter = TextReporter(Console(file=stream, width=20))
    reporter.report(DONE)
    reporter.close()
    assert stream.getvalue() == (
        "batch 3: 1,000 rows, 2.0 KiB, 2,000 rows/s, lag ? | total 5,000 rows, 3.0 MiB\n"
    )


def test_ticks_come_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(tandemmq.spark.pipelines.events.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    reporter = TextReporter(Console(file=stream, width=20))
    for seconds in range(25):
        now[0] = 100.0 + seconds
        reporter.report(SideReading(side="lake", tasks_done=seconds, tasks=25, seconds=seconds))
    reporter.report(DONE)
    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == [
        "reading lake",
        "reading lake",
        "batch 3",
    ]


def test_tasks_that_are_done_stay_done_when_spark_forgets_their_stage() -> None:
    stages = {1: SimpleNamespace(numCompletedTasks=1, numTasks=4)}
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(stages), getStageInfo=stages.get)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    jobs = Jobs(cast(Any, spark), StopFlag())
    assert jobs._count_tasks() == (1, 4)
    del stages[1]
    stages[2] = SimpleNamespace(numCompletedTasks=0, numTasks=2)
    assert jobs._count_tasks() == (4, 6)


def test_words_for_people() -> None:
    assert render_bytes(512) == "512 B"
    assert render_bytes(5 << 30) == "5.0 GiB"
    assert "asked to" in Stopped(reason="signal", rows_total=0, bytes_total=0).render()
    assert "in 2 s: gone" in Restarted(error="gone", pause_seconds=2.0).render()
