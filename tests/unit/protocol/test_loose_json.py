"""FastJSON's dialect (spec remoting 6)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.loose_json import (
    DEPTH_MAX,
    HEADER_TEXT,
    LARGE_TEXT,
    REQUEST_TEXT,
    TextBound,
    parse,
    parse_text_map,
)

READABLE: dict[str, tuple[str, Any]] = {
    "strict": ('{"a":[1,-2.5e1,true,false,null,"x"]}', {"a": [1, -25.0, True, False, None, "x"]}),
    "whitespace": (' \t\r\n{ "a" : [ 1 , 2 ] } \n', {"a": [1, 2]}),
    "integer keys": ('{0:"a",-1:"b"}', {"0": "a", "-1": "b"}),
    "integer keys over lines": ("{0:250,1:251\n\t\t}", {"0": 250, "1": 251}),
    "quoted and unquoted keys mixed": ('{"0":1,1:2}', {"0": 1, "1": 2}),
    "names as keys": ("{code:1,$x_y:2}", {"code": 1, "$x_y": 2}),
    "object as key": (
        '{{"brokerName":"b","queueId":0,"topic":"T"}:5}',
        {'{"brokerName":"b","queueId":0,"topic":"T"}': 5},
    ),
    "list as key": ("{[1,2]:3}", {"[1,2]": 3}),
    "single quotes": ("{'a':'it\\'s \"x\"'}", {"a": 'it\'s "x"'}),
    "trailing commas": ('{"a":[1,2,],}', {"a": [1, 2]}),
    "number suffixes": ("[1L,2.5D,3F,4B,5S]", [1, 2.5, 3, 4, 5]),
    "big integer": ("9223372036854775808", 9223372036854775808),
    "sets": ('[Set[1,2],TreeSet["a"]]', [[1, 2], ["a"]]),
    "raw control characters": ('"a\x01\nb"', "a\x01\nb"),
    "escapes": (r'"\"\\\/\b\f\n\r\t\u4e3b\x41\0\v"', '"\\/\b\f\n\r\t主A\0\v'),
    "surrogate pair": (r'"\ud83d\ude00"', "\U0001f600"),
    "half surrogate pair": (r'"\ud83d"', "?"),
    "replacement character": ('"\ufffd\\ufffd"', "\ufffd\ufffd"),
    "undefined": ("[undefined]", [None]),
    "empty": ("{}", {}),
    "byte order mark": ("\ufeff{}", {}),
    "equal keys": ('{"a":1,"a":2}', {"a": 2}),
}


@pytest.mark.parametrize(("text", "value"), READABLE.values(), ids=READABLE.keys())
def test_dialect_is_read(text: str, value: Any) -> None:
    assert parse(text) == value
    assert parse(text.encode()) == value


UNREADABLE: dict[str, str | bytes] = {
    "nothing": "",
    "space": "  ",
    "cut object": '{"a":1',
    "cut list": "[1,2",
    "cut text": '"abc',
    "cut escape": '"abc\\',
    "cut unicode escape": '"\\u12',
    "unicode escape of no digits": '"\\u12x4"',
    "signed unicode escape": '"\\u+123"',
    "unknown escape": '"\\q"',
    "no colon": '{"a" 1}',
    "no comma": "[1 2]",
    "double comma": "[1,,2]",
    "no key": "{:1}",
    "no value": '{"a":}',
    "two values": "{} {}",
    "unknown word": "[nope]",
    "code": "System.exit(0)",
    "letter behind number": "12x",
    "endless number": "9" * 100_000,
    "mismatch": "[}",
    "no UTF-8": b'"\xff"',
    "deep lists": "[" * (DEPTH_MAX + 2) + "]" * (DEPTH_MAX + 2),
    "very deep lists": "[" * 1_000_000,
    "very deep objects": '{"a":' * 100_000,
    "very deep keys": "{" * 1_000_000,
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_the_rest_is_the_peers_fault(text: str | bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(text)


def test_error_tells_the_position() -> None:
    with pytest.raises(RemoteProtocolError, match="character 5"):
        parse('{"a":nope}')


def test_allowed_depth() -> None:
    parse("[" * DEPTH_MAX + "]" * DEPTH_MAX)


REFERENCES: dict[str, tuple[str, Any]] = {
    "path": ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
    "path into a list": ('{"a":[1,[2]],"b":{"$ref":"$.a[1]"}}', {"a": [1, [2]], "b": [2]}),
    "integer key": ('{1:{"x":1},"b":{"$ref":"$.1"}}', {"1": {"x": 1}, "b": {"x": 1}}),
    "quoted key": ('{"a.b":[1],"b":{"$ref":"$[\'a.b\']"}}', {"a.b": [1], "b": [1]}),
    "bracketed integer key": ('{"m":{1:[5]},"b":{"$ref":"$.m[1]"}}', {"m": {"1": [5]}, "b": [5]}),
    "forward": ('{"a":{"$ref":"$.b"},"b":[1]}', {"a": [1], "b": [1]}),
    "reference to a reference": (
        '{"a":[1],"b":{"$ref":"$.a"},"c":{"$ref":"$.b"}}',
        {"a": [1], "b": [1], "c": [1]},
    ),
    "a key of that name with more beside it": ('{"$ref":"$","x":1}', {"$ref": "$", "x": 1}),
}


@pytest.mark.parametrize(("text", "value"), REFERENCES.values(), ids=REFERENCES.keys())
def test_reference_is_resolved(text: str, value: Any) -> None:
    assert parse(text) == value


BAD_REFERENCES = {
    "root": '{"a":{"$ref":"$"}}',
    "itself": '{"a":{"$ref":"$.a"}}',
    "each other": '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
    "parent": '{"a":{"b":{"$ref":".."}}}',
    "above the root": '{"$ref":".."}',
    "unknown": '{"a":{"$ref":"@"}}',
    "missing": '{"a":{"$ref":"$.nope"}}',
    "beyond the list": '{"a":[1],"b":{"$ref":"$.a[7]"}}',
    "huge index": '{"a":[1],"b":{"$ref":"$.a[99999999999999999999]"}}',
    "broken path": '{"a":{"$ref":"$.."}}',
}


@pytest.mark.parametrize("text", BAD_REFERENCES.values(), ids=BAD_REFERENCES.keys())
def test_reference_without_end_or_aim_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(text)


def doubling(level_count: int) -> str:
    """Returns a text in which each level holds the previous one twice."""
    levels = [f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, level_count)]
    return '{"a0":[1],' + ",".join(levels) + "}"


def seconds_of(text: str, bound: TextBound) -> float:
    """Returns the processor time until the text is refused."""
    begun = time.thread_time()
    with pytest.raises(RemoteProtocolError):
        parse(text, bound)
    return time.thread_time() - begun


def test_references_cannot_grow_beyond_the_size_of_their_text() -> None:
    parse(doubling(6))
    with pytest.raises(RemoteProtocolError, match="without end"):
        parse(doubling(20))
    assert seconds_of(doubling(24), HEADER_TEXT) < 0.2  # it was two seconds


def test_a_reader_of_loose_texts_gives_up_by_counting() -> None:
    items = "[" + "1L," * 900 + "]"
    assert parse(items, HEADER_TEXT) == [1] * 900
    for text in (
        "[" + "1L," * 2_000 + "]",
        "{" + "a:1," * 2_000 + "}",
        '["' + r"\x41" * 2_000 + '"]',
        "[" + "'x'," * 20_000 + "]",
        "[" + "{{a:1}:2}," * 20_000 + "]",
    ):
        with pytest.raises(RemoteProtocolError, match="more than 1024 keys, values and escapes"):
            parse(text, HEADER_TEXT)
        assert seconds_of(text, HEADER_TEXT) < 0.2


def test_a_loose_text_of_many_characters_is_refused() -> None:
    long = "x" * REQUEST_TEXT.characters
    with pytest.raises(RemoteProtocolError, match="at most 262144 are"):
        parse(f"{{a:'{long}'}}")
    with pytest.raises(RemoteProtocolError, match="at most 262144 are"):
        parse(f'{{"a":"{long}","b":{{"$ref":"$.a"}}}}')
    assert parse(f"{{a:'{long}'}}", LARGE_TEXT) == {"a": long}
    assert parse(f'{{"a":"{long}"}}') == {"a": long}  # strict JSON costs little


@pytest.mark.parametrize(
    "text",
    ['"' + r"\"" * 100_000, '"' + r"\"" * 100_000 + "\\", '"' * 100_001, "{1" * 50_000, ",1:" * 60_000],
    ids=["quotes", "cut quotes", "odd quotes", "braces", "keys"],
)
def test_no_text_makes_the_search_for_integer_keys_go_back(text: str) -> None:
    assert seconds_of(text, HEADER_TEXT) < 0.5


def test_a_large_table_with_integer_keys_costs_no_steps() -> None:
    rows = ",".join(f'"T{n}@G":{{0:{n},1:{n}}}' for n in range(5_000))
    table = parse(f'{{"offsetTable":{{{rows}}}}}')
    assert table["offsetTable"]["T4999@G"] == {"0": 4999, "1": 4999}


@pytest.mark.parametrize("text", ['{"a":"{5:b,6:"}', '{"a":"x\\",7:",8:9}', "{'a,5:b':1}"])
def test_only_keys_are_taken_for_integer_keys(text: str) -> None:
    expected = {"a": "{5:b,6:"}, {"a": 'x",7:', "8": 9}, {"a,5:b": 1}
    assert parse(text) in expected


def test_text_map_keeps_the_text_of_literals() -> None:
    text = b'{"a":"x","b":1.50,"c":true,"d":null,"e":{"x" :1},"f":"\\u4e3b"}'
    assert parse_text_map(text) == {"a": "x", "b": "1.50", "c": "true", "e": '{"x" :1}', "f": "主"}


def test_text_map_in_the_loose_dialect() -> None:
    assert parse_text_map(b"{a:1,'b':[1, 2],c:null,d:true}") == {"a": "1", "b": "[1,2]", "d": "true"}


@pytest.mark.parametrize("text", [b"[]", b"1", b"", b"x", b'"a"'])
def test_text_map_of_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_text_map(text)
