"""What the driver does with a transactional batch: commit it as a whole, or take it back.

Order of a commit: all half messages are stored; the decision is on disk; then the ends go. From the decision
on the batch is never taken back, and whoever commits the same batch again finishes it instead of sending it
anew. Half messages of attempts that were given up are ended by nobody: brokers discard them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from tandemmq.errors import ConfigError
from tandemmq.protocol.sys_flag import TRANSACTION_ROLLBACK
from tandemmq.spark.sink.decision import Decision, DecisionFiles, new_file_name
from tandemmq.spark.sink.ender import Ender, EndFailed
from tandemmq.spark.sink.halves import HalfPart, count_halves, decode_part, too_many_rows
from tandemmq.spark.sink.options import SinkOptions

log = logging.getLogger(__name__)


@dataclass
class TaskHalves(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What one task attempt stored as half messages; `is_decided`: nothing, the batch was decided before."""

    name: str
    parts: tuple[bytes, ...]
    is_decided: bool = False
    empty_count: int = 0
    """Rows without a body that were left out or diverted."""


def commit(options: SinkOptions, batch_id: int, tasks: Sequence[TaskHalves]) -> None:
    """Returns when every row of the batch is visible.

    Raises:  MessageIllegal for too many rows, and nothing is visible; EndFailed with what to do.
    """
    if not tasks:
        return
    parts = _join(tasks)
    if count_halves(parts) > options.transaction_rows_max:
        raise too_many_rows(options.transaction_rows_max)
    files = _files(options, tasks)
    if files is None:
        _end(options, _now_ms(), options.group, parts, "they are taken back: the write has no stateDir")
        return
    with files.locked():
        known = files.read()
        if known is not None and not known.is_done:
            _finish(options, files, known)
        if known is not None and known.key == (tasks[0].name, batch_id):
            roll_back(options, parts)
        elif any(task.is_decided for task in tasks):
            raise ConfigError(f"{files.directory}: the decision of batch {batch_id} has gone meanwhile")
        elif parts:
            _decide(options, files, tasks[0].name, batch_id, parts)


def abort(options: SinkOptions, batch_id: int, tasks: Sequence[TaskHalves]) -> None:
    """Takes the half messages back, unless the batch is decided: Spark may abort what was committed."""
    with _locked(_files(options, tasks)) as files:
        known = None if files is None else files.read()
        if known is None or known.key != (tasks[0].name, batch_id):
            roll_back(options, _join(tasks))


def roll_back(options: SinkOptions, parts: Sequence[HalfPart]) -> None:
    """Tries to end all with a rollback; what is left is discarded by the brokers."""
    Ender(options, options.group, 0).roll_back(parts, TRANSACTION_ROLLBACK)


def _decide(
    options: SinkOptions, files: DecisionFiles, name: str, batch_id: int, parts: Sequence[HalfPart]
) -> None:
    decision = Decision(
        name=name,
        batch_id=batch_id,
        group=options.group,
        rows=count_halves(parts),
        decided_at_ms=_now_ms(),
        file=new_file_name(batch_id),
    )
    files.write(decision, parts)
    _end(options, decision.decided_at_ms, decision.group, parts, _advice(files))
    files.mark_done(decision)


def _finish(options: SinkOptions, files: DecisionFiles, known: Decision) -> None:
    """The ends that an earlier commit did not come to."""
    parts = files.read_parts(known)
    _end(options, known.decided_at_ms, known.group, parts, _advice(files), is_repeat=True)
    files.mark_done(known)


def _end(
    options: SinkOptions,
    since_ms: int,
    group: str,
    parts: Sequence[HalfPart],
    advice: str,
    *,
    is_repeat: bool = False,
) -> None:
    try:
        Ender(options, group, since_ms).commit(parts, is_repeat=is_repeat)
    except EndFailed as error:
        raise EndFailed(f"{error}; {advice}") from error


def _advice(files: DecisionFiles) -> str:
    return (
        f"start the query again to commit them ({files.directory} holds the decision). Only if their broker"
        " has lost them for good: remove that directory, and the whole batch is sent again"
    )


def _join(tasks: Sequence[TaskHalves]) -> list[HalfPart]:
    return [decode_part(raw) for task in tasks for raw in task.parts]


def _files(options: SinkOptions, tasks: Sequence[TaskHalves]) -> DecisionFiles | None:
    return DecisionFiles(options.state_dir, tasks[0].name) if options.state_dir and tasks else None


@contextmanager
def _locked(files: DecisionFiles | None) -> Iterator[DecisionFiles | None]:
    if files is None:
        yield None
        return
    with files.locked():
        yield files


def _now_ms() -> int:
    return int(time.time() * 1000)
