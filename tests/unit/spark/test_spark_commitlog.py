"""Tests reading CommitLog files in pieces: every record once, all damage reported."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tandemmq.errors import ConfigError, RemoteProtocolError
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, encode_blank, encode_record
from tandemmq.spark.columns import project_schema, select_columns
from tandemmq.spark.commitlog import (
    LOG_COLUMNS,
    LOG_OPTION_TABLE,
    cut_pieces,
    find_files,
    parse_log_options,
    read_piece,
)
from tandemmq.spark.option_table import render_option_table
from tandemmq.spark.options import PropertiesAs

HOST = encode_host("10.0.0.2", 10911)
FILE_BYTES = 8192


def write_log(root: Path, count: int) -> list[int]:
    """Writes a log of `count` records in files of 8 KiB; returns the start of each record."""
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    places: list[int] = []
    data = bytearray()
    for number in range(count):
        record = _record(number, len(data))
        room = FILE_BYTES - len(data) % FILE_BYTES
        if len(record) + 8 > room:
            data += encode_blank(room)
            data += bytes(-len(data) % FILE_BYTES)
            record = _record(number, len(data))
        places.append(len(data))
        data += record
    data += bytes(-len(data) % FILE_BYTES)
    for base in range(0, len(data), FILE_BYTES):
        (directory / f"{base:020d}").write_bytes(data[base : base + FILE_BYTES])
    (directory / f"{len(data):020d}").write_bytes(bytes(FILE_BYTES))
    return places


def _record(number: int, log_offset: int) -> bytes:
    new = NewRecord(
        topic="TU"[number % 2],
        queue_id=0,
        body=b"body %d " % number * 5,
        properties=encode_properties({"TAGS": "a"}),
        born_at_ms=number,
        born_host=HOST,
    )
    return encode_record(
        new, queue_offset=number // 2, log_offset=log_offset, stored_at_ms=1000 + number, store_host=HOST
    )


def damage_bytes(root: Path, at: int, flip: int = 1) -> None:
    path = root / "commitlog" / f"{at - at % FILE_BYTES:020d}"
    data = bytearray(path.read_bytes())
    data[at % FILE_BYTES] ^= flip
    path.write_bytes(data)


def read(root: Path, **more: str) -> list[dict[str, Any]]:
    options = parse_log_options({"path": str(root), **more})
    projection = select_columns(options.columns, PropertiesAs.MAP, LOG_COLUMNS, LOG_COLUMNS)
    pieces = cut_pieces(find_files(options.path), options.piece_bytes)
    return [row for piece in pieces for b in read_piece(piece, options, projection) for row in b.to_pylist()]


@pytest.mark.parametrize("piece_bytes", ["1k", "333", "8192", "128m"])
def test_every_record_is_read_once_however_the_files_are_cut(tmp_path: Path, piece_bytes: str) -> None:
    places = write_log(tmp_path, 200)
    rows = read(tmp_path, pieceBytes=piece_bytes, brokerName="b", arrowRows="7")
    assert [row["physicalOffset"] for row in rows] == places
    assert [row["body"] for row in rows] == [b"body %d " % n * 5 for n in range(200)]
    assert {row["damage"] for row in rows} == {None}
    assert {row["brokerName"] for row in rows} == {"b"}


def test_one_topic_only(tmp_path: Path) -> None:
    write_log(tmp_path, 50)
    rows = read(tmp_path / "commitlog", topic="U", columns="topic,queueOffset,damage")
    assert rows == [{"topic": "U", "queueOffset": n, "damage": None} for n in range(25)]


@pytest.mark.parametrize("piece_bytes", ["700", "128m"])
def test_a_flipped_bit_in_a_body_marks_its_row(tmp_path: Path, piece_bytes: str) -> None:
    places = write_log(tmp_path, 100)
    damage_bytes(tmp_path, places[60] + 95)
    rows = read(tmp_path, pieceBytes=piece_bytes)
    (bad,) = [row for row in rows if row["damage"]]
    assert (bad["physicalOffset"], bad["queueOffset"], bad["topic"]) == (places[60], 30, "T")
    assert "CRC" in bad["damage"] or "checksum" in bad["damage"]
    assert sorted(row["physicalOffset"] for row in rows) == places
    assert len(read(tmp_path, damaged="skip")) == 99
    with pytest.raises(RemoteProtocolError, match=f"log offset {places[60]}"):
        read(tmp_path, damaged="fail")


@pytest.mark.parametrize("piece_bytes", ["700", "128m"])
@pytest.mark.parametrize("at", [0, 4, 28])
def test_a_broken_head_costs_one_record(tmp_path: Path, piece_bytes: str, at: int) -> None:
    places = write_log(tmp_path, 100)
    damage_bytes(tmp_path, places[60] + at, flip=0x7F)
    rows = read(tmp_path, pieceBytes=piece_bytes)
    (bad,) = [row for row in rows if row["damage"]]
    assert (bad["physicalOffset"], bad["topic"], bad["queueOffset"]) == (places[60], "T", 30)
    assert [row["physicalOffset"] for row in rows if not row["damage"]] == places[:60] + places[61:]


def test_a_missing_file_is_a_row(tmp_path: Path) -> None:
    places = write_log(tmp_path, 200)
    (tmp_path / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    rows = read(tmp_path)
    (bad,) = [row for row in rows if row["damage"]]
    assert (bad["physicalOffset"], bad["body"]) == (FILE_BYTES, None)
    assert "in no file" in bad["damage"]
    assert len(rows) - 1 == sum(1 for at in places if not FILE_BYTES <= at < 2 * FILE_BYTES)


def test_a_missing_range_has_no_value_for_a_column_declared_not_null(tmp_path: Path) -> None:
    write_log(tmp_path, 200)
    (tmp_path / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    options = parse_log_options({"path": str(tmp_path)})
    strict = project_schema([("body", "binary", False)], LOG_COLUMNS)
    batches = chain(
        *(
            read_piece(one, options, strict)
            for one in cut_pieces(find_files(options.path), options.piece_bytes)
        )
    )
    with pytest.raises(ConfigError, match="column body: the schema says NOT NULL, but 1 of 1 rows"):
        list(batches)


def test_a_path_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a CommitLog file"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="path is required"):
        parse_log_options({})


def test_the_documentation_holds_the_table_of_commitlog() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark" / "options.md").read_text()
    assert render_option_table(LOG_OPTION_TABLE) in text
