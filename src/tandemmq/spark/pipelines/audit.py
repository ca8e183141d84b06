"""Audits whether all copies of a topic contain the same messages, each exactly once.

Each side is read once and folded into digests by queue and range of offsets. Only ranges whose digests differ
are then compared row by row, to report the first differences. The reference fixes the ends of the queues
once, so messages may be sent meanwhile; replicas get some time to reach those ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import PLACE
from tandemmq.spark.lake.view import view_lake
from tandemmq.spark.metadata import Bounds, QueriedCluster, require_named
from tandemmq.spark.offsets import QueueKey
from tandemmq.spark.options import SourceOptions, parse_options
from tandemmq.spark.pipelines.audit_frames import (
    Comparison,
    Digest,
    Digests,
    Form,
    Frames,
    PieceKey,
    RangePart,
    Ranges,
    Side,
    choose_form,
    compare,
    cut_parts,
)
from tandemmq.spark.pipelines.events import (
    AuditDone,
    AuditStarted,
    BarChart,
    Difference,
    RepeatedKeys,
    Reporter,
    SideJudged,
    SideRead,
    SideReading,
)
from tandemmq.spark.pipelines.options import AuditOptions
from tandemmq.spark.pipelines.runner import Interrupted, Workplace, attempt, explain_failure, open_workplace
from tandemmq.spark.resolve import describe_all

SEARCHED_PIECES_MAX = 16
SHOWN_DIFFERENCES_MAX = 5
ROWS_PER_SEARCH = 10_000
POLL_S = 0.2

_EXIT_CODES = {"equal": 0, "different": 1, "error": 1, "signal": 3}


def run_audit(options: AuditOptions, reporter: Reporter) -> int:
    """Runs the audit and returns the exit code: 0 if all sides are equal, 1 if they differ or one cannot be
    read, 3 after a signal.

    An audit that repeats until a signal ends with the code of its last complete round.
    Raises:  ConfigError before anything is read.
    """
    if options.name_servers:
        parse_options(options.source_options(), is_streaming=False)
    for lake in options.lakes:
        if not view_lake(lake).pieces:
            raise ConfigError(f"{lake} is not a lake: it has no batches and no table")
    rounds: list[tuple[str, str]] = []

    def judge() -> tuple[str, str]:
        verdicts: list[bool] = []
        reason, error = attempt(lambda: verdicts.append(Audit(place, options).run()))
        if verdicts:
            reason = "equal" if verdicts[0] else "different"
        if reason != "signal" or not rounds:
            rounds.append((reason, error))
        return rounds[-1]

    with open_workplace(options, reporter, options.spark_log, is_long=options.is_continuous) as place:
        reason, error = place.repeat(judge, options.pause_s)
    reporter.report(AuditDone(reason=reason, error=error))
    return _EXIT_CODES[reason]


class _Findings(NamedTuple):
    """The results of the row-by-row search on one side; `gap_s`: the store time between the first and the
    last missing message.
    """

    missing: int = 0
    repeated: int = 0
    differing: int = 0
    gap_s: float = 0.0
    shown: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """One audit in a session; `run` returns True if all sides are equal."""

    place: Workplace
    options: AuditOptions

    def run(self) -> bool:
        """Returns True if every side contains every message of the ranges exactly once and unchanged."""
        options = self.options
        sides = self._find_sides()
        form = self.place.jobs.run(lambda: choose_form(self.place.spark, options.lakes))
        frames = Frames(self.place.spark, form, options)
        ranges = self._find_ranges(sides[0], frames)
        self._await_ends([side for side in sides if side.replica is not None], ranges)
        self._report_start(sides, form, ranges)
        reads = zip(sides, self._read_all(sides, frames, ranges), strict=True)
        digests: dict[str, Digests] = {side.name: read for side, read in reads if read is not None}
        if not digests:
            return False
        readable = [side for side in sides if side.name in digests]
        is_equal = self._compare_sides(readable, digests, frames, ranges)
        bars = tuple((side, float(sum(d.rows for d in found.values()))) for side, found in digests.items())
        self.place.report(BarChart(title="Rows by side", unit="rows", bars=bars))
        if options.count_repeated_keys:
            self._report_repeated_keys(readable[0], frames, ranges)
        return is_equal and len(readable) == len(sides)

    def _compare_sides(
        self, sides: Sequence[Side], digests: Mapping[str, Digests], frames: Frames, ranges: Ranges
    ) -> bool:
        """Compares all sides with the first one and reports each verdict; returns True if all are equal."""
        reference = sides[0]
        parts = cut_parts(ranges, self.options.piece_size)
        expected = self.place.jobs.run(lambda: frames.expect(parts))
        is_equal = True
        for side in sides:
            found = compare(digests[reference.name], digests[side.name], parts, expected, ranges)
            self._report_verdict(side, reference, found, frames)
            is_equal &= found.is_equal
        return is_equal

    def _report_repeated_keys(self, side: Side, frames: Frames, ranges: Ranges) -> None:
        frame = frames.read(side, ranges)
        messages, keys, example = self.place.jobs.run(lambda: frames.repeated_keys(frame))
        self.place.report(RepeatedKeys(side=side.name, messages=messages, keys=keys, example=example))

    def _find_sides(self) -> list[Side]:
        """Returns the sides, the reference first: the master, else the first one that was named."""
        options = self.options
        sides = []
        if options.name_servers:
            source = self._source_options()
            topology = QueriedCluster(source).describe()
            require_named(topology, source)
            ids = sorted({number for replicas in topology.replicas.values() for number in replicas})
            sides = [Side(name=f"slave {n}" if n else "master", replica=n) for n in ids]
        sides += [Side(name=f"store {path}", store=path, broker=broker) for broker, path in options.stores]
        sides += [Side(name=f"lake {path}", lake=path) for path in options.lakes]
        if len(sides) < 2:
            raise ConfigError("there is one copy only: no slave is registered, no --lake or --store is given")
        return sides

    def _source_options(self, replica: int | None = None) -> SourceOptions:
        return parse_options(self.options.source_options(replica), is_streaming=False)

    def _find_ranges(self, reference: Side, frames: Frames) -> Ranges:
        if reference.replica is None:
            return self.place.jobs.run(lambda: frames.find_ranges(reference))
        source = self._source_options(reference.replica)
        _, bounds = describe_all(QueriedCluster(source), source)
        return {queue: (limits.begin, limits.end) for queue, limits in sorted(bounds.items())}

    def _await_ends(self, replicas: Sequence[Side], ranges: Ranges) -> None:
        """Waits until the replicas have reached the ends of `ranges`, or the time for it is over."""
        deadline = time.monotonic() + self.options.settle_s
        for side in replicas:
            cluster = QueriedCluster(self._source_options(side.replica))
            while not self.place.stop.is_set and time.monotonic() < deadline:
                bounds = cluster.read_bounds(cluster.describe())
                if _has_reached(bounds, ranges):
                    break
                time.sleep(POLL_S)

    def _report_start(self, sides: Sequence[Side], form: Form, ranges: Ranges) -> None:
        self.place.report(
            AuditStarted(
                topic=self.options.topic,
                reference=sides[0].name,
                sides=tuple(side.name for side in sides),
                columns=form.compared,
                queues=len(ranges),
                messages=sum(end - begin for begin, end in ranges.values()),
            )
        )

    def _read_all(
        self, sides: Sequence[Side], frames: Frames, ranges: Ranges
    ) -> list[dict[PieceKey, Digest] | None]:
        """Returns the digests of each side, all read concurrently; None for a side that cannot be read."""
        began = time.monotonic()

        def tick(done: int, total: int) -> None:
            seconds = round(time.monotonic() - began, 1)
            names = ", ".join(side.name for side in sides)
            self.place.report(SideReading(side=names, tasks_done=done, tasks=total, seconds=seconds))

        def read(side: Side) -> tuple[dict[PieceKey, Digest], float]:
            found = frames.digest(frames.read(side, ranges), self.options.piece_size)
            return found, max(time.monotonic() - began, 0.001)

        results = self.place.jobs.run_all([partial(read, side) for side in sides], tick)
        return [self._report_read(side, result) for side, result in zip(sides, results, strict=True)]

    def _report_read(
        self, side: Side, result: tuple[dict[PieceKey, Digest], float] | BaseException
    ) -> dict[PieceKey, Digest] | None:
        if isinstance(result, (Interrupted, ConfigError)):
            raise result
        if isinstance(result, BaseException):
            detail = explain_failure(str(result))
            self.place.report(Difference(side=side.name, problem="unreadable", detail=detail))
            return None
        digests, seconds = result
        rows = sum(digest.rows for digest in digests.values())
        self.place.report(
            SideRead(side=side.name, rows=rows, seconds=round(seconds, 3), rate=round(rows / seconds))
        )
        return digests

    def _report_verdict(self, side: Side, reference: Side, comparison: Comparison, frames: Frames) -> None:
        searched = comparison.suspects[:SEARCHED_PIECES_MAX]
        findings = self._search(side, reference, searched, frames) if searched else _Findings()
        for difference in findings.shown:
            self.place.report(difference)
        for late in comparison.behind:
            self.place.report(
                Difference(
                    side=side.name,
                    problem="behind",
                    topic=late.queue.topic,
                    broker=late.queue.broker,
                    queue=late.queue.queue_id,
                    offset=late.reached,
                    detail=f"{late.messages:,} messages, {late.seconds:.1f} s",
                )
            )
        self.place.report(_conclude(side, comparison, findings, len(comparison.suspects) - len(searched)))

    def _search(self, side: Side, reference: Side, parts: Sequence[RangePart], frames: Frames) -> _Findings:
        """Compares some parts row by row."""
        theirs, ours = frames.read_parts(reference, parts), frames.read_parts(side, parts)
        rows = self.place.jobs.run(
            lambda: frames.differences(theirs, ours).orderBy(*PLACE).limit(ROWS_PER_SEARCH).collect()
        )
        missing_ms = [row.stored_at_ms for row in rows if row.ours == 0]
        shown = [
            Difference(
                side=side.name,
                problem=_problem(row.theirs, row.ours),
                topic=row.topic,
                broker=row.brokerName,
                queue=row.queueId,
                offset=row.queueOffset,
                columns=tuple(row.columns),
            )
            for row in rows[:SHOWN_DIFFERENCES_MAX]
        ]
        return _Findings(
            missing=len(missing_ms),
            repeated=sum(row.ours - 1 for row in rows if row.ours > 1),
            differing=sum(row.ours == 1 for row in rows),
            gap_s=(max(missing_ms) - min(missing_ms)) / 1000 if missing_ms else 0.0,
            shown=shown,
        )


def _problem(theirs: int, ours: int) -> str:
    if ours == 0:
        return "missing"
    if ours > 1:
        return "repeated"
    return "extra" if theirs == 0 else "differs"


def _has_reached(bounds: Mapping[QueueKey, Bounds], ranges: Ranges) -> bool:
    return all(queue in bounds and bounds[queue].end >= end for queue, (_, end) in ranges.items())


def _conclude(side: Side, comparison: Comparison, findings: _Findings, not_searched: int) -> SideJudged:
    return SideJudged(
        side=side.name,
        is_equal=comparison.is_equal,
        # If gaps and repeats cancel out in the counts of a piece, the search is more accurate.
        missing=max(comparison.missing, findings.missing),
        behind=sum(late.messages for late in comparison.behind),
        repeated=max(comparison.surplus, findings.repeated),
        differing=findings.differing,
        loss_seconds=round(max([findings.gap_s, *(late.seconds for late in comparison.behind)]), 3),
        pieces_not_searched=not_searched,
    )
