"""Sends messages of a lake to a topic again, by time and filter, at a bounded rate.

The parts of a replay are the lake's batches (for a compacted table also its merged files). Each sent part is
recorded (`ReplayState`), and a restarted replay continues with the next one. An interrupted part is sent
again with the same unique keys, which depend on the positions of the landed messages and not on the time of
sending.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import PLACE
from tandemmq.spark.documents import read_versioned, write_document
from tandemmq.spark.lake.files import CONTROL_DIR, Totals
from tandemmq.spark.lake.rows import read_rows
from tandemmq.spark.lake.view import LakePiece, LakeView, view_lake
from tandemmq.spark.pipelines.events import Reporter, report_end, report_start
from tandemmq.spark.pipelines.options import NAME_SERVERS, TASKS, ReplayOptions, RepublishOptions
from tandemmq.spark.pipelines.runner import Workplace, attempt, open_workplace
from tandemmq.spark.sink.options import parse_sink_options


def run_replay(options: ReplayOptions, reporter: Reporter) -> int:
    """Runs the replay and returns the exit code: 0 if everything is sent or after a signal, 1 after an error.

    Raises:  ConfigError before anything is sent.
    """
    parse_sink_options(options.sink_options())
    if not view_lake(options.lake).pieces and not options.is_continuous:
        raise ConfigError(f"{options.lake} holds no batches of a landing")
    state = load_state(options.state_path, options.plan())
    log = options.lake / CONTROL_DIR / "replay.log"
    with open_workplace(options, reporter, log, is_long=options.is_continuous) as place:
        return Replay(place, options, state).run()


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay in a session."""

    place: Workplace
    options: ReplayOptions
    state: ReplayState

    def run(self) -> int:
        """Sends the messages of the lake, and newly landed ones if requested; returns the exit code."""
        options, place = self.options, self.place

        def send_new() -> tuple[str, str]:
            end = attempt(lambda: self._send_all(view_lake(options.lake)))
            place.stop.is_set |= end[0] != "done"
            return end

        report_start(place.reporter, str(options.lake), options.to_topic, self.state.total)
        reason, error = place.repeat(send_new, options.pause_s)
        return report_end(place.reporter, reason, self.state.total, error)

    def _send_all(self, view: LakeView) -> None:
        """Sends the parts of a lake that are not done.

        Raises:  ConfigError for a lake that was compacted meanwhile: parts would be sent twice, or not at
                 all.
        """
        root = view.lake.root
        waiting = [piece for piece in view.pieces if piece.name not in self.state.done]
        gone = set(self.state.done) - {piece.name for piece in view.pieces}
        if gone and any(not piece.is_batch for piece in waiting):
            raise ConfigError(
                f"{root} was compacted since this replay began, so continuing would send messages twice"
            )
        # Batches are sent in order, so all up to the last done one are done.
        last_done = max((int(name) for name in self.state.done if name.isdecimal()), default=-1)
        for piece in view.pieces:
            if piece.name in self.state.done and piece.last > last_done >= 0:
                raise ConfigError(
                    f"{root} was compacted since this replay began: batch {piece.name}, which is sent,"
                    f" now holds those up to {piece.last}, which are not. Begin anew with another --state:"
                    " what is sent again has the same unique keys"
                )
        for number, piece in enumerate(waiting):
            self._send(view, piece, number, left=len(waiting) - number - 1)

    def _send(self, view: LakeView, piece: LakePiece, number: int, *, left: int) -> None:
        began = time.monotonic()
        rows, size_bytes = self.place.jobs.run(lambda: self._write(view, piece))
        self.state.mark(piece.name, rows, size_bytes)
        batch = int(piece.name) if piece.is_batch else number
        self.place.report_batch(batch, Totals(rows, size_bytes), self.state.total, left, began)

    def _write(self, view: LakeView, piece: LakePiece) -> tuple[int, int]:
        frame = read_rows(self.place.spark, view, [piece])
        if frame is None:
            return 0, 0
        return send_frame(self._select(self._filter(frame)), self.options.sink_options())

    def _filter(self, frame: DataFrame) -> DataFrame:
        options = self.options
        absent = [name for name in PLACE if name not in frame.columns]
        if absent or "body" not in frame.columns:
            raise ConfigError(f"the lake has no column {(*absent, 'body')[0]}: it cannot be replayed")
        return choose_stored(frame, options)

    def _select(self, frame: DataFrame) -> DataFrame:
        """Returns the columns of the sink; messages of one queue stay in order, in one task."""
        options = self.options
        ordered = frame.repartition(TASKS, *PLACE[:3]).sortWithinPartitions(*PLACE)
        key = f.col("msgId") if options.keep_keys else make_key(options.to_topic)
        columns: list[Any] = [
            f.col("body"),
            key.alias("uniqueKey"),
            *(f.col(name) for name in ("tags", "keys", "properties", "flag") if name in frame.columns),
        ]
        if options.keep_queues:
            columns.append(f.col("queueId"))
        return ordered.select(*columns)


# The parts that `dead_letters` shares.


def choose_stored(frame: DataFrame, options: RepublishOptions) -> DataFrame:
    """Returns the messages that the options select by store time and condition."""
    if options.begin_ms is not None:
        frame = frame.where(f"storeTimestamp >= timestamp_millis({options.begin_ms})")
    if options.end_ms is not None:
        frame = frame.where(f"storeTimestamp < timestamp_millis({options.end_ms})")
    return frame.where(options.where) if options.where else frame


def make_key(purpose: str) -> Any:
    """Returns the unique key of a row that is sent again: the same for the same purpose and position."""
    # Java's search by key reads a time from the last twelve digits: see `sink.columns`.
    origin = f.sha2(f.concat_ws("@", f.lit(purpose), *PLACE), 256)
    return f.upper(f.concat(f.substring(origin, 1, 20), f.lit("0" * 12)))


def send_frame(messages: DataFrame, sink: Mapping[str, str]) -> tuple[int, int]:
    """Sends the messages; returns their number and the bytes of their bodies."""
    seen = Observation()
    counted = messages.observe(seen, f.count("*").alias("rows"), f.sum(f.octet_length("body")).alias("bytes"))
    counted.write.format("tandemmq").options(**sink).mode("append").save()
    return int(seen.get["rows"]), int(seen.get["bytes"] or 0)


VERSION = 1


@dataclass(slots=True)
class ReplayState:
    """The progress of a replay, in a small file, so that only the same replay resumes from it.

    `plan`: the options that identify the replay; `done`: rows and bytes of each sent part. The file is
    replaced atomically.
    """

    path: Path
    plan: Mapping[str, str]
    done: dict[str, tuple[int, int]]

    @property
    def total(self) -> Totals:
        return sum((Totals(*found) for found in self.done.values()), Totals())

    def mark(self, part: str, rows: int, size_bytes: int) -> None:
        """Records that a part is sent; the record is on disk when this returns."""
        self.done[part] = (rows, size_bytes)
        self.write()

    def write(self) -> None:
        """Writes the state to disk."""
        document = {"version": VERSION, "plan": dict(self.plan), "done": self.done}
        write_document(self.path, document, indent=1)


def load_state(path: Path, plan: Mapping[str, str]) -> ReplayState:
    """Returns the state in the file; an empty one if there is no file.

    Raises:  ConfigError if the file belongs to another replay: some messages would be sent by neither plan.
    """
    document = read_versioned(path, VERSION)
    if document is None:
        return ReplayState(path=path, plan=plan, done={})
    # Options that an earlier version did not store cannot be compared.
    known = {name: str(value) for name, value in document["plan"].items()}
    changed = sorted(name for name in plan if name in known and not _is_same(name, known[name], plan[name]))
    if changed == [NAME_SERVERS]:
        raise ConfigError(
            f"{path} belongs to the cluster of {known[NAME_SERVERS]}, this is {plan[NAME_SERVERS]}: give"
            f" another file with --state; or, if it is the same cluster, correct {NAME_SERVERS} in the file"
        )
    if changed:
        raise ConfigError(
            f"{path} belongs to a replay with other options ({', '.join(changed)}); give them again, or "
            "another file with --state"
        )
    done = {part: (int(rows), int(size)) for part, (rows, size) in document["done"].items()}
    return ReplayState(path=path, plan=plan, done=done)


def _is_same(name: str, known: str, wanted: str) -> bool:
    if name != NAME_SERVERS:
        return known == wanted
    one, other = (set(re.split(r"[;,\s]+", text)) for text in (known, wanted))
    return bool((one & other) - {""})
