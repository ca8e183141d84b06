"""Tests that the audit finds and reports planted faults, and reports nothing for healthy copies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pipeline_recorder import Recorder
from spark_lakes import follow_topic, land

from tandemmq.spark.pipelines.audit import Audit
from tandemmq.spark.pipelines.events import AuditStarted, Difference, RepeatedKeys, SideJudged
from tandemmq.spark.pipelines.options import DEFAULT_COLUMNS, AuditOptions
from tandemmq.spark.pipelines.runner import StopFlag, Workplace

TOPIC = "Audited"


def _land(spark: Any, cluster: Any, out: Path) -> None:
    land(follow_topic(spark, cluster.namesrv, TOPIC, columns=",".join(DEFAULT_COLUMNS)), out)


def _audit(
    spark: Any, cluster: Any, *lakes: Path, stores: tuple[Path, ...] = (), has_keys: bool = True
) -> tuple[bool, Recorder]:
    recorder = Recorder()
    options = AuditOptions(
        topic=TOPIC,
        name_servers=cluster.namesrv,
        lakes=lakes,
        stores=tuple(("b", store) for store in stores),
        piece_size=100,
        count_repeated_keys=has_keys,
    )
    return Audit(Workplace(spark, recorder, StopFlag()), options).run(), recorder


@contextmanager
def _flipped_bit(log: Path, body: bytes) -> Iterator[None]:
    """Flips one bit of one message of TOPIC for the duration of the block; the cluster serves other tests,
    too.
    """
    # In a record the topic follows the body; other tests send such bodies, too.
    wanted = body + bytes([len(TOPIC)]) + TOPIC.encode()
    for path in sorted(log.iterdir()):
        at = path.read_bytes().find(wanted)
        if at >= 0:
            break
    else:
        raise AssertionError(f"no file of {log} holds {body!r}")
    _write_byte(path, at + 2, body[2] ^ 1)
    try:
        yield
    finally:
        _write_byte(path, at + 2, body[2])


def _write_byte(path: Path, at: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([value]))


def test_healthy_copies_are_equal_and_planted_faults_are_named(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    cluster.send(TOPIC, 1000)
    lake = tmp_path / "lake"
    _land(spark, cluster, lake)
    is_equal, reported = _audit(spark, cluster, lake, stores=(cluster.directory / "slave",))
    assert is_equal, reported.events
    assert len(reported.of(SideJudged)) == 4
    assert reported.of(AuditStarted)[0].messages == 1000
    assert {"body", "properties", "storeTimestamp"} <= set(reported.of(AuditStarted)[0].columns)
    assert reported.of(RepeatedKeys)[0].messages == 0

    behind = tmp_path / "behind"
    shutil.copytree(cluster.directory / "slave" / "commitlog", behind / "commitlog")
    cut, doubled = tmp_path / "cut", tmp_path / "doubled"
    cluster.send(TOPIC, 50, first=1000)
    _land(spark, cluster, cut)
    shutil.copytree(cut, doubled)
    file = max(cut.glob("batch=*/*.parquet"), key=lambda path: path.stat().st_size)
    table = pq.ParquetFile(file).read()
    lost = table.slice(40, 1).to_pylist()[0]
    pq.write_table(table.filter([n != 40 for n in range(table.num_rows)]), file)
    file = next(doubled.glob("batch=*/*.parquet"))
    twice = pq.ParquetFile(file).metadata.num_rows
    shutil.copy(file, file.with_name("part-00000-again.parquet"))

    with _flipped_bit(cluster.directory / "slave" / "commitlog", b'{"n":777}'):
        is_equal, reported = _audit(spark, cluster, cut, doubled, stores=(behind,), has_keys=False)
    assert not is_equal
    verdicts = {event.side: event for event in reported.of(SideJudged)}
    found = {name: [e for e in reported.of(Difference) if e.side == name] for name in verdicts}
    assert verdicts["master"].is_equal
    (flipped,) = found["slave 1"]
    assert (flipped.problem, flipped.columns) == ("differs", ("body",))
    assert (verdicts["slave 1"].differing, verdicts["slave 1"].missing) == (1, 0)
    (missing,) = found[f"lake {cut}"]
    assert (missing.problem, missing.queue, missing.offset) == (
        "missing",
        lost["queueId"],
        lost["queueOffset"],
    )
    assert verdicts[f"lake {cut}"].missing == 1
    assert verdicts[f"lake {doubled}"].repeated == twice
    assert {event.problem for event in found[f"lake {doubled}"]} == {"repeated"}
    late = verdicts[f"store {behind}"]
    assert (late.behind, late.missing, late.repeated, late.differing) == (50, 50, 0, 0)
    assert late.loss_seconds > 0
    assert {event.problem for event in found[f"store {behind}"]} == {"behind"}
