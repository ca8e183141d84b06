"""A lake and its live topic as one DataFrame, each message once.

    from tandemmq.spark.pipelines.history import history

    orders = history(spark, lake="/data/orders", name_servers="127.0.0.1:9876")

Messages that the lake has are read from its files, later ones from the brokers. If the topic lost messages
between the two, or was created again, the query fails unless `failOnDataLoss=false`. Spark's checkpoint
contains the end of each batch. Only the batches of one view of the lake count, so a concurrent landing
changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from tandemmq.errors import BrokerUnreachable, ConfigError, TandemError
from tandemmq.spark.checkpoint import read_end
from tandemmq.spark.columns import COLUMN_TYPES
from tandemmq.spark.lake.files import Totals
from tandemmq.spark.lake.rows import read_rows
from tandemmq.spark.lake.view import LakeView, view_lake
from tandemmq.spark.offsets import Positions, StreamOffset, decode_offset, nest_positions, render_queues
from tandemmq.spark.options import SourceOptions, parse_options
from tandemmq.spark.pipelines.events import (
    BarChart,
    Reporter,
    report_end,
    report_start,
)
from tandemmq.spark.pipelines.options import CHECKPOINT_DIR, HistoryOptions, join_options
from tandemmq.spark.pipelines.runner import Workplace, attempt, open_workplace


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """The boundary between lake and brokers. `view`: the part of the lake to read; `end`: in each queue, the
    first offset that the lake lacks.
    """

    view: LakeView
    end: StreamOffset

    @property
    def positions(self) -> Positions:
        return self.end.positions


def find_seam(lake: Path, checkpoint: Path | None = None) -> Seam:
    """Returns the current seam; a lake without batches begins where its topic begins.

    Raises:  ConfigError if the checkpoint does not contain the end of the last batch.
    """
    view = view_lake(lake)
    if view.last_batch is None:
        return Seam(view=view, end=StreamOffset())
    directory = checkpoint or lake / CHECKPOINT_DIR
    try:
        document = read_end(directory, view.last_batch)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{directory} lacks the end offsets of batch {view.last_batch} of {lake}: pass the checkpoint of"
            " its landing"
        ) from error
    return Seam(view=view, end=decode_offset(document))


FROM_COLUMN = "landed"
"""True for rows of the lake, False for rows of the brokers."""


def history(
    spark: SparkSession,
    *,
    lake: str | Path,
    name_servers: str,
    topic: str = "",
    columns: Sequence[str] = (),
    checkpoint: str | Path | None = None,
    options: dict[str, str] | None = None,
) -> DataFrame:
    """Returns the messages of the lake's topics, from the first that was landed to the newest one, each once.

    `topic`: selects topics of a lake that has several; required for an empty lake. `columns`: by default all
    that lake and topic have in common. `options`: further options of the source; if the landing used `tags`,
    the same are needed here. The end is fixed by this call, so the frame has the same rows however often it
    is computed.
    Raises:  ConfigError for a lake without its checkpoint, or columns that it lacks.
    """
    root = Path(lake)
    seam = find_seam(root, Path(checkpoint) if checkpoint is not None else None)
    topics = topic or ",".join(sorted({queue.topic for queue in seam.positions}))
    if not topics:
        raise ConfigError(f"{root} holds no batches yet: pass the topic")
    landed = read_rows(spark, seam.view)
    chosen = _choose_columns(landed, columns, root)
    source = {"nameServer": name_servers, "subscribe": topics, **(options or {})}
    live = _read_live(spark, source, seam, landed, chosen)
    if landed is None:
        return live
    wanted = [name.strip() for name in topics.split(",")]
    if "topic" in landed.columns:
        landed = landed.where(landed["topic"].isin(*wanted))
    return landed.select(*chosen).selectExpr("*", f"true AS {FROM_COLUMN}").unionByName(live)


def _choose_columns(landed: DataFrame | None, columns: Sequence[str], root: Path) -> list[str]:
    if landed is None:
        return list(columns) or list(COLUMN_TYPES)
    types = {field.name: field.dataType.simpleString() for field in landed.schema.fields}
    common = [name for name in COLUMN_TYPES if types.get(name) in COLUMN_TYPES[name]]
    absent = [name for name in columns if name not in common]
    if absent:
        raise ConfigError(
            f"the lake {root} has no column {absent[0]!r} of messages; it has {', '.join(common)}"
        )
    return list(columns) or common


def bound_live(options: SourceOptions, seam: Seam) -> tuple[Positions, Positions]:
    """Returns the start of the brokers' part in queues that the lake knows, and its end in all queues.

    Raises:  ConfigError for other tags, or another filter, than the landing's. OffsetOutOfRange if messages
             are lost between the two, or the topic was created again, so that offsets after the seam belong
             to unrelated messages. BrokerUnreachable if a slave reports such a topic and its master does not
             answer.
    """
    from tandemmq.spark.metadata import QueriedCluster
    from tandemmq.spark.resolve import describe_all, find_losses

    if seam.positions and seam.end.filter_hash != options.filter_hash:
        raise ConfigError("the option tags or filter differs from the landing's: pass the same in options")
    cluster = QueriedCluster(options)
    topology, bounds = describe_all(cluster, options, may_be_absent=bool(seam.positions))
    known = {queue: at for queue, at in seam.positions.items() if queue.topic in options.topics}
    end = replace(seam.end, positions=known)
    losses = find_losses(cluster, topology, bounds, end, options, checks_all_queues=True)
    if losses.doubted:
        raise BrokerUnreachable(
            f"{render_queues(losses.doubted)}: a slave's messages differ from those landed, and its master"
            " does not answer"
        )
    starts = {queue: at for queue, at in known.items() if queue not in losses.gone} | dict(losses.moved)
    return starts, {queue: max(limits.end, starts.get(queue, 0)) for queue, limits in bounds.items()}


def _read_live(
    spark: SparkSession,
    source: dict[str, str],
    seam: Seam,
    landed: DataFrame | None,
    columns: Sequence[str],
) -> DataFrame:
    starts, ends = bound_live(parse_options(source, is_streaming=False), seam)
    types = dict(landed.dtypes) if landed is not None else {name: COLUMN_TYPES[name][0] for name in columns}
    given = {"startingOffsets": json.dumps(nest_positions(starts))} if starts else {}
    return (
        spark.read.format("tandemmq")
        .schema(", ".join(f"`{name}` {types[name]}" for name in columns))
        .options(**{**given, "endingOffsets": json.dumps(nest_positions(ends)), **source})
        .load()
        .selectExpr("*", f"false AS {FROM_COLUMN}")
    )


def run_history(options: HistoryOptions, reporter: Reporter) -> int:
    """Writes the history to Parquet files; returns 0 when done or stopped by a signal, 1 after an error.

    Raises:  ConfigError before anything is written, for example if the output already exists.
    """
    if options.out.exists():
        raise ConfigError(f"{options.out} exists: an export never adds to a directory, pass a new one")
    source, total = join_options(options, {}, options.source), Totals()

    def export() -> None:
        nonlocal total
        total = _export(place, options, source)

    with open_workplace(options, reporter) as place:
        report_start(reporter, str(options.lake), str(options.out), total)
        reason, error = attempt(export, refused=(TandemError,))
    return report_end(reporter, reason, total, error)


def _export(place: Workplace, options: HistoryOptions, source: dict[str, str]) -> Totals:
    """Writes the files beside `out`, and renames them into place when all are complete."""
    seen, began = Observation(), time.monotonic()
    staged = options.out.with_name(f"{options.out.name}.unfinished")
    frame = history(
        place.spark,
        lake=options.lake,
        name_servers=options.name_servers,
        topic=options.topic,
        columns=options.columns,
        checkpoint=options.checkpoint,
        options=source,
    )
    if options.where:
        frame = frame.where(options.where)
    counted = frame.observe(seen, f.count("*").alias("rows"), f.count_if(FROM_COLUMN).alias("landed"))
    place.jobs.run(lambda: counted.write.mode("overwrite").parquet(str(staged.absolute())))
    staged.rename(options.out)
    rows, landed = int(seen.get["rows"]), int(seen.get["landed"])
    size_bytes = sum(path.stat().st_size for path in options.out.glob("*.parquet"))
    total = Totals(rows=rows, size_bytes=size_bytes)
    place.report_batch(0, total, total, 0, began)
    bars = (("lake", float(landed)), ("brokers", float(rows - landed)))
    place.report(BarChart(title="Where the rows come from", unit="rows", bars=bars))
    return total
