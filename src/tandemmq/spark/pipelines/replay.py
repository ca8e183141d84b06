"""Sends messages of a lake to a topic again, by time and filter, at a bounded rate.

The parts of a replay are the lake's batches (for a compacted table also its merged files). Each sent part is
recorded (`ReplayState`), and a restarted replay continues with the next one. An interrupted part is sent
again with the same unique keys, which depend on the positions of the landed messages and not on the time of
sending.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import CONTROL_DIR, read_owner, sync_dir, sync_file
from tandemmq.spark.lake.view import LakePiece, LakeView, view_lake
from tandemmq.spark.pipelines.events import Reporter, Started, Stopped, Totals, make_batch_done
from tandemmq.spark.pipelines.lake_job import read_rows
from tandemmq.spark.pipelines.runner import Interrupted, Jobs, StopFlag, explain_failure, open_session, repeat
from tandemmq.spark.sink.options import parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PLACE = ("topic", "brokerName", "queueId", "queueOffset")
NAME_SERVERS = "namesrv"
"""The plan's key for the target cluster. A cluster may gain and lose name servers, but not all at once."""

TASKS = 2
"""The number of concurrent senders, which share the rate."""


class Keys(Enum):
    """The choice of unique keys for replayed messages."""

    NEW = "new"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of `tandemmq pipeline replay`. Times: milliseconds of store time, the end exclusive."""

    lake: Path
    name_servers: str
    to_topic: str
    begin_ms: int | None = None
    end_ms: int | None = None
    where: str = ""
    rate: int | None = None
    keys: Keys = Keys.NEW
    keep_queues: bool = False
    state: Path | None = None
    follow_every_s: float | None = None
    master: str = "local[*]"
    sink: tuple[tuple[str, str], ...] = ()

    @property
    def state_path(self) -> Path:
        return self.state or self.lake / CONTROL_DIR / f"replay-{self.to_topic}.json"

    def plan(self) -> dict[str, str]:
        """Returns the options that decide which messages are sent, and with which keys."""
        return {
            "topic": self.to_topic,
            "from": str(self.begin_ms),
            "until": str(self.end_ms),
            "where": self.where,
            "keys": self.keys.value,
            "lake": read_owner(self.lake) or "",
            NAME_SERVERS: self.name_servers,
        }

    def sink_options(self) -> dict[str, str]:
        options = {"nameServer": self.name_servers, "topic": self.to_topic}
        if self.rate is not None:
            options["taskRowsPerSecond"] = str(max(1, self.rate // TASKS))
        return {**options, **dict(self.sink)}


def run_replay(options: ReplayOptions, reporter: Reporter) -> int:
    """Runs the replay and returns the exit code: 0 if everything is sent or after a signal, 1 after an error.

    Raises:  ConfigError before anything is sent.
    """
    parse_sink_options(options.sink_options())
    if not view_lake(options.lake).pieces and options.follow_every_s is None:
        raise ConfigError(f"{options.lake} holds no batches of a landing")
    state = load_state(options.state_path, options.plan())
    log = options.lake / CONTROL_DIR / "replay.log"
    name, is_long = f"replay {options.to_topic}", options.follow_every_s is not None
    with open_session(name, options.master, log, is_long=is_long) as (spark, stop):
        replay = Replay(spark, options, state, reporter, stop)
        return replay.run_all()


class Replay:
    """One replay in a session."""

    def __init__(
        self,
        spark: SparkSession,
        options: ReplayOptions,
        state: ReplayState,
        reporter: Reporter,
        stop: StopFlag,
    ) -> None:
        self._spark = spark
        self._options = options
        self._state = state
        self._reporter = reporter
        self._stop = stop
        self._jobs = Jobs(spark, stop)

    def run_all(self) -> int:
        """Sends the messages of the lake, and newly landed ones if requested; returns the exit code."""
        self._report_start()
        reason, error = "done", ""

        def send_new() -> int:
            nonlocal reason, error
            reason, error = self._send_all(view_lake(self._options.lake))
            if reason != "done":
                self._stop.is_set = True
            return 0

        repeat(send_new, every_s=self._options.follow_every_s, stop=self._stop)
        if reason == "done" and self._options.follow_every_s is not None:
            reason = "signal"
        return self._end(reason, error)

    def run(self) -> int:
        """Sends the parts of the current lake that are not done; returns the exit code."""
        self._report_start()
        return self._end(*self._send_all(view_lake(self._options.lake)))

    def _report_start(self) -> None:
        self._reporter.report(
            Started(
                topic=str(self._options.lake),
                out=self._options.to_topic,
                rows_total=self._state.rows,
                bytes_total=self._state.size_bytes,
            )
        )

    def _send_all(self, view: LakeView) -> tuple[str, str]:
        """Returns how it ended, `done`, `signal` or `error`, and the error.

        Raises:  ConfigError for a lake that was compacted meanwhile: parts would be sent twice, or not at
                 all.
        """
        waiting = [piece for piece in view.pieces if piece.name not in self._state.done]
        gone = set(self._state.done) - {piece.name for piece in view.pieces}
        if gone and any(not piece.is_batch for piece in waiting):
            raise ConfigError(
                f"{view.root} was compacted since this replay began, so continuing would send messages twice"
            )
        # Batches are sent in order, so all up to the last done one are done.
        last_done = max((int(name) for name in self._state.done if name.isdecimal()), default=-1)
        for piece in view.pieces:
            if piece.name in self._state.done and piece.last > last_done >= 0:
                raise ConfigError(
                    f"{view.root} was compacted since this replay began: batch {piece.name}, which is sent,"
                    f" now holds those up to {piece.last}, which are not. Begin anew with another --state:"
                    " what is sent again has the same unique keys"
                )
        try:
            for number, piece in enumerate(waiting):
                self._send(view, piece, number, left=len(waiting) - number - 1)
        except Interrupted:
            return "signal", ""
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (failures of Spark and py4j share no class)
            return "error", explain_failure(str(error))
        return "done", ""

    def _send(self, view: LakeView, piece: LakePiece, number: int, *, left: int) -> None:
        began = time.monotonic()
        rows, size_bytes = self._jobs.run(lambda: self._write(view, piece))
        self._state.mark(piece.name, rows, size_bytes)
        batch = int(piece.name) if piece.is_batch else number
        done = Totals(rows=rows, size_bytes=size_bytes)
        total = Totals(rows=self._state.rows, size_bytes=self._state.size_bytes)
        seconds = time.monotonic() - began
        self._reporter.report(make_batch_done(batch, done, total, lag=left, seconds=seconds))

    def _write(self, view: LakeView, piece: LakePiece) -> tuple[int, int]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        frame = read_rows(self._spark, view, [piece])
        if frame is None:
            return 0, 0
        seen = Observation()
        messages = self._select(self._filter(frame)).observe(
            seen, f.count("*").alias("rows"), f.sum(f.octet_length("body")).alias("bytes")
        )
        messages.write.format("tandemmq").options(**self._options.sink_options()).mode("append").save()
        return int(seen.get["rows"]), int(seen.get["bytes"] or 0)

    def _filter(self, frame: DataFrame) -> DataFrame:
        options = self._options
        absent = [name for name in PLACE if name not in frame.columns]
        if absent or "body" not in frame.columns:
            raise ConfigError(f"the lake has no column {(*absent, 'body')[0]}: it cannot be replayed")
        if options.begin_ms is not None:
            frame = frame.where(f"storeTimestamp >= timestamp_millis({options.begin_ms})")
        if options.end_ms is not None:
            frame = frame.where(f"storeTimestamp < timestamp_millis({options.end_ms})")
        return frame.where(options.where) if options.where else frame

    def _select(self, frame: DataFrame) -> DataFrame:
        """Returns the columns of the sink; messages of one queue stay in order, in one task."""
        from pyspark.sql import functions as f

        options = self._options
        ordered = frame.repartition(TASKS, *PLACE[:3]).sortWithinPartitions(*PLACE)
        # Java's search by key reads a time from the last twelve digits: see `sink.columns`.
        origin = f.sha2(f.concat_ws("@", f.lit(options.to_topic), *PLACE), 256)
        new_key = f.upper(f.concat(f.substring(origin, 1, 20), f.lit("0" * 12)))
        columns: list[Any] = [
            f.col("body"),
            (f.col("msgId") if options.keys is Keys.KEEP else new_key).alias("uniqueKey"),
            *(f.col(name) for name in ("tags", "keys", "properties", "flag") if name in frame.columns),
        ]
        if options.keep_queues:
            columns.append(f.col("queueId"))
        return ordered.select(*columns)

    def _end(self, reason: str, error: str = "") -> int:
        self._reporter.report(
            Stopped(
                reason=reason,
                rows_total=self._state.rows,
                bytes_total=self._state.size_bytes,
                error=error,
            )
        )
        return 1 if reason == "error" else 0


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
    def rows(self) -> int:
        return sum(rows for rows, _ in self.done.values())

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.done.values())

    def mark(self, part: str, rows: int, size_bytes: int) -> None:
        """Records that a part is sent; the record is on disk when this returns."""
        self.done[part] = (rows, size_bytes)
        self.write()

    def write(self) -> None:
        """Writes the state to disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.path.with_name(f"{self.path.name}.new")
        document = {"version": VERSION, "plan": dict(self.plan), "done": self.done}
        staged.write_text(json.dumps(document, indent=1) + "\n")
        sync_file(staged)
        os.replace(staged, self.path)
        sync_dir(self.path.parent)


def load_state(path: Path, plan: Mapping[str, str]) -> ReplayState:
    """Returns the state in the file; an empty one if there is no file.

    Raises:  ConfigError if the file belongs to another replay: some messages would be sent by neither plan.
    """
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return ReplayState(path=path, plan=plan, done={})
    except ValueError as error:
        raise ConfigError(f"{path} is not the state of a replay: {error}") from error
    if document.get("version") != VERSION:
        raise ConfigError(f"{path} has version {document.get('version')!r}; this version knows {VERSION}")
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
