"""Tests JSON bodies: the names in an inferred schema, and the reasons why a body does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.pipelines.json_bodies import (
    choose_spellings,
    explain_body,
    find_more,
    merge_schemas,
    parse_object,
    parse_schema,
    split_body,
)

pyspark_types = pytest.importorskip("pyspark.sql.types")


def _schema(**types: str) -> Any:
    """Builds the schema by hand, because DDL needs a session."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


def test_of_names_that_differ_in_case_the_commonest_stays() -> None:
    found = [
        {"Id": 1, "in": {"A": 1}},
        {"id": 2, "in": {"a": 2}},
        {"id": 3, "ID": 4, "l": [{"a": 1}, {"A": 2}]},
    ]
    objects, left_out = choose_spellings(found)
    assert objects == [{"in": {"A": 1}}, {"id": 2, "in": {}}, {"id": 3, "l": [{"a": 1}, {}]}]
    assert left_out == ("ID", "Id", "in.a", "l.A")
    assert choose_spellings([{"n": 1}]) == ([{"n": 1}], ())


def test_a_body_nested_too_deeply_does_not_keep_others_from_a_schema() -> None:
    deep = b'{"a":' + b"[" * 700 + b"]" * 700 + b"}"
    assert [
        parse_object(body) for body in (deep, deep.decode(), b'{"a": [[1]]}', '{"b": 2}', b"[]", None)
    ] == [
        None,
        None,
        {"a": [[1]]},
        {"b": 2},
        None,
        None,
    ]


def test_a_schema_with_names_that_no_column_can_hold_is_refused() -> None:
    def struct(*names: str) -> dict[str, Any]:
        fields = [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in names]
        return {"type": "struct", "fields": fields}

    inner = {"type": "array", "elementType": struct("b", "B"), "containsNull": True}
    nested = {"type": "struct", "fields": [{"name": "a", "type": inner, "nullable": True, "metadata": {}}]}
    for schema, why in (
        (struct("n", "N"), "n and N"),
        (struct("n", "n"), "n and n"),
        (nested, r"a\.b and a\.B"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("type_name", "value", "reason"),
    [
        ("long", "1.0", "v: expected a whole number (bigint), got 1.0"),
        ("byte", "128", "v: expected a whole number from -128 to 127, got 128"),
        ("long", "true", "v: expected a whole number (bigint), got true"),
        ("double", '"x"', 'v: expected a number (double), got "x"'),
        ("decimal(5,2)", "1234.5", "v: expected a number of decimal(5,2), got 1234.5"),
        ("boolean", "0", "v: expected true or false, got 0"),
        ("date", "[]", "v: expected a date as text, got []"),
        ("timestamp", '"soon"', 'does not fit the schema, perhaps in v: expected a timestamp, got "soon"'),
    ],
)
def test_reasons_name_place_type_and_value(type_name: str, value: str, reason: str) -> None:
    assert explain_body(f'{{"v": {value}}}'.encode(), _schema(v=type_name)) == reason


def test_reasons_of_bodies_that_are_no_objects() -> None:
    schema = _schema(n="long")
    assert explain_body(b"[1]", schema) == "the body: expected an object, got [1]"
    assert explain_body(b"null", schema) == "the body: expected an object, got null"
    assert explain_body(b" ", schema) == "empty"
    assert explain_body(b"\xff", schema) == "not UTF-8: byte 0xff at 0"
    assert explain_body(b"[" * 100_000, schema).startswith("no JSON")


def _long(name: str) -> dict[str, Any]:
    return {"name": name, "type": "long", "nullable": True, "metadata": {}}


def _nested() -> Any:
    """`n bigint, in struct<a:bigint>, list array<struct<a:bigint>>, d decimal(30,20)`."""
    inner = {"type": "struct", "fields": [_long("a")]}
    items = {"type": "array", "elementType": inner, "containsNull": True}
    fields = [
        _long("n"),
        {**_long("in"), "type": inner},
        {**_long("list"), "type": items},
        {**_long("d"), "type": "decimal(30,20)"},
    ]
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


@pytest.mark.parametrize(
    ("body", "text", "rescue"),
    [
        ('{"n": 1, "in": {"a": null}}', None, None),
        ('{"n": 1, "new": [1]}', {"n": 1}, {"new": [1]}),
        ('{"n": "x", "in": {"a": 1, "N": 2.50}}', {"in": {"a": 1}}, {"n": "x", "in": {"N": 2.5}}),
        (
            '{"list": [{"a": 1}, {"a": true}, 7]}',
            {"list": [{"a": 1}, {}, None]},
            {"list": [None, {"a": True}, 7]},
        ),
        ('{"n": {}, "in": []}', {}, {"n": {}, "in": []}),
        ("[1]", None, None),
        ("{", None, None),
    ],
)
def test_what_fits_is_read_and_the_rest_is_rescued(body: str, text: Any, rescue: Any) -> None:
    found = split_body(body.encode(), _nested())
    assert [None if part is None else json.loads(part) for part in found] == [text, rescue]


def test_rescuing_changes_no_digit() -> None:
    body = b'{"d":1.23456789012345678901,"new":0.10000000000000000001,"n":12345678901234567890123}'
    assert split_body(body, _nested()) == (
        '{"d":1.23456789012345678901}',
        '{"new":0.10000000000000000001,"n":12345678901234567890123}',
    )


def test_half_a_character_is_an_ordinary_body() -> None:
    schema = _schema(n="long", t="string")
    reason = explain_body(r'{"n": "\ud83d"}', schema)
    assert reason.encode() == rb'n: expected a whole number (bigint), got "\ud83d"'
    text, rescue = split_body(rb'{"n": "x\ud83d", "t": "\ude00", "\ud83d": [1.10, {"a": "\ud83d"}]}', schema)
    assert text == r'{"t":"\ude00"}'
    assert rescue == '{"n":"x\\ud83d","\N{REPLACEMENT CHARACTER}":[1.10,{"a":"\\ud83d"}]}'
    assert split_body(rb'{"n": 1, "more": "\ud83d\ude00"}', schema) == ('{"n":1}', '{"more":"😀"}')
    assert split_body(b'{"n": 1, "more": "\xff"}', schema) == ('{"n":1}', '{"more":"\ufffd"}')


def test_more_than_one_object_is_no_json() -> None:
    assert find_more('{"n": 1}{"n": 2}') == "no JSON: Extra data: line 1 column 9 (char 8)"
    assert find_more('{"n": 1}\n{"n": 2}\n') == "no JSON: Extra data: line 2 column 1 (char 9)"
    assert find_more('{"n": 1} x') == "no JSON: Extra data: line 1 column 10 (char 9)"
    # Bodies that Spark can read although they are not JSON remain good.
    for text in ('{"n": "}{"}', " {} \n", "{'n': 1}", None):
        assert find_more(text) is None


def test_numbers_that_are_words_are_rescued_as_words() -> None:
    schema = _schema(d="double", n="long")
    body = b'{"d": NaN, "n": Infinity, "more": [-Infinity, 1]}'
    assert split_body(body, schema) == ('{"d":"NaN"}', '{"n":"Infinity","more":["-Infinity",1]}')


def test_a_schema_grows_and_keeps_what_it_has() -> None:
    inner = {"type": "struct", "fields": [_long("A"), _long("b")]}
    found = parse_schema(
        json.dumps(
            {
                "type": "struct",
                "fields": [
                    {**_long("n"), "type": "string"},
                    {**_long("in"), "type": inner},
                    {**_long("list"), "type": {"type": "array", "elementType": inner, "containsNull": True}},
                    _long("new"),
                ],
            }
        )
    )
    grown = merge_schemas(_nested(), found)
    assert grown.simpleString() == (
        "struct<n:bigint,in:struct<a:bigint,b:bigint>,list:array<struct<a:bigint,b:bigint>>,"
        "d:decimal(30,20),new:bigint>"
    )
    assert merge_schemas(grown, _nested()) == grown
    assert merge_schemas(_nested(), grown) == grown
