"""Tests Avro and Protobuf bodies: their columns, their values, and the reasons for bad ones."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from body_samples import AVRO, OLD_AVRO, make_descriptors, registry, write_avro

from tandemmq.errors import ConfigError, NoRoute
from tandemmq.spark.pipelines.binary_bodies import (
    AvroReader,
    BodyUnreadable,
    ProtobufReader,
    check_fields,
    make_reader,
)

ORDER = {"id": 7, "name": "x", "at": datetime(2025, 1, 2, tzinfo=UTC), "price": Decimal("1.50"), "items": []}


def test_avro_columns_and_values() -> None:
    pytest.importorskip("fastavro")
    reader = AvroReader(json.dumps(AVRO))
    assert reader.ddl() == (
        "`id`: bigint, `name`: string, `at`: timestamp, `price`: decimal(9, 2), "
        "`items`: array<struct<`counts`: map<string, int>>>"
    )
    order = {**ORDER, "items": [{"counts": {"a": 1}}]}
    body = write_avro(order, AVRO)
    assert pickle.loads(pickle.dumps(reader)).read(body) == order
    for bad, why in ((body[:3], "no Avro of that schema"), (body + b"x", "1 bytes are left")):
        with pytest.raises(BodyUnreadable, match=why):
            reader.read(bad)


def test_avro_of_a_registry_is_read_with_the_schema_of_its_writer() -> None:
    pytest.importorskip("fastavro")
    old = {"id": 1, "price": None, "items": []}
    body = write_avro(old, OLD_AVRO, 3)
    with registry({3: OLD_AVRO, 4: AVRO}) as address:
        reader = AvroReader(json.dumps(AVRO), is_framed=True, registry=address)
        assert reader.read(body) == {**old, "name": None, "at": datetime(1970, 1, 1, tzinfo=UTC)}
        assert reader.read(write_avro(ORDER, AVRO, 4)) == ORDER
        for bad, why in ((b"\x01\0\0\0\x04", "no header"), (b"\0\0\0\0\x09x", "has no schema 9")):
            with pytest.raises(BodyUnreadable, match=why):
                reader.read(bad)
    # Fetched schemas are cached; an unreachable registry is not the body's fault.
    assert reader.read(body)["id"] == 1
    with pytest.raises(NoRoute, match="schema registry"):
        reader.read(write_avro(ORDER, AVRO, 5))
    # Without a registry all writers are assumed to use the given schema.
    assert AvroReader(json.dumps(AVRO), is_framed=True).read(write_avro(ORDER, AVRO, 99)) == ORDER


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (["int", "string"], "union"),
        ("shop.Order", "contains itself"),
        ({"type": "int", "logicalType": "time-millis"}, "time-millis"),
    ],
)
def test_avro_that_columns_cannot_hold_is_refused(kind: Any, why: str) -> None:
    pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "shop.Order", "fields": [{"name": "f", "type": kind}]}
    with pytest.raises(ConfigError, match=why):
        AvroReader(json.dumps(schema)).ddl()


def test_protobuf_columns_and_values() -> None:
    pytest.importorskip("google.protobuf")
    reader = ProtobufReader(make_descriptors(), "shop.Order")
    assert reader.ddl() == (
        "`id`: bigint, `name`: string, `items`: array<struct<`price`: double>>, `kind`: string, "
        "`counts`: map<string, decimal(20, 0)>"
    )
    body = b"\x08\x07\x1a\x09\x09" + b"\0" * 8 + b"\x20\x01\x2a\x05\x0a\x01a\x10\x05"
    values = {"id": 7, "name": None, "items": [{"price": 0.0}], "kind": "GIFT", "counts": {"a": 5}}
    assert pickle.loads(pickle.dumps(reader)).read(body) == values
    framed = ProtobufReader(make_descriptors(), "shop.Order", is_framed=True)
    for header in (b"\0\0\0\0\x05\0", b"\0\0\0\0\x05\x04\x00\x02"):
        assert framed.read(header + body) == values
    with pytest.raises(BodyUnreadable, match=r"no Protobuf of shop\.Order"):
        reader.read(b"\xff")
    with pytest.raises(BodyUnreadable, match="incomplete"):
        framed.read(b"\0\0\0\0\x05\xff")
    with pytest.raises(ConfigError, match=r"shop\.None"):
        ProtobufReader(make_descriptors(), "shop.None").ddl()


def test_options_that_do_not_go_together_and_other_fields_are_refused(tmp_path: Path) -> None:
    for options, why in (
        (("{}", "f:M", False, ""), "only one of"),
        (("", "", True, ""), "need --avro-schema"),
        (("", "f:M", True, "http://r"), "is for Avro"),
        (("", "f", False, ""), "FILE:MESSAGE"),
        (("", f"{tmp_path}/none:M", False, ""), "No such file"),
    ):
        avro, protobuf, is_framed, address = options
        with pytest.raises(ConfigError, match=why):
            make_reader(avro, protobuf, is_framed=is_framed, registry=address)
    pytest.importorskip("fastavro")
    check_fields(tmp_path, AvroReader(json.dumps(OLD_AVRO)))
    check_fields(tmp_path, AvroReader(json.dumps(AVRO)))
    (tmp_path / "batch=00000000").mkdir()
    check_fields(tmp_path, AvroReader(json.dumps(AVRO)))
    with pytest.raises(ConfigError, match="another directory"):
        check_fields(tmp_path, AvroReader(json.dumps(OLD_AVRO)))
