"""The JSON header: what clients send, what FastJSON tolerates, what we write (spec remoting 2)."""

from __future__ import annotations

import json

import pytest

from tandemmq.errors import BadRequest, LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.codes import LanguageCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.header_json import decode_header_json, encode_header_json
from tandemmq.protocol.requests.consume import QueryOffsetRequest, SearchOffsetRequest
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2, SendResponse

V2_FIELDS = {
    "a": "PG", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "1700000000000", "h": "7",
    "i": "KEYS\x01k\x02", "j": "2", "k": "false", "l": "16", "m": "true", "n": "broker-a",
}  # fmt: skip
V2_HEADER = SendRequestV2(
    producer_group="PG",
    topic="TopicTest",
    default_topic="TBW102",
    default_topic_queue_count=4,
    queue_id=-1,
    sys_flag=0,
    born_at_ms=1700000000000,
    flag=7,
    properties="KEYS\x01k\x02",
    retry_count=2,
    is_unit_mode=False,
    retry_count_max=16,
    is_batch=True,
    broker_name="broker-a",
)


def read(text: str | bytes) -> Command:
    return decode_header_json(text.encode() if isinstance(text, str) else text, b"")


def read_fields(fields: object) -> Command:
    return read(json.dumps({"code": 310, "extFields": fields}))


def test_java_sends_texts() -> None:
    assert read_fields(V2_FIELDS).decode(SendRequestV2) == V2_HEADER


def test_node_sends_numbers_and_booleans() -> None:
    fields = {
        **V2_FIELDS,
        "d": 4, "e": -1, "f": 0, "g": 1700000000000, "h": 7, "j": 2, "k": False, "l": 16, "m": True,
    }  # fmt: skip
    command = read_fields(fields)
    assert command.decode(SendRequestV2) == V2_HEADER
    assert command.fields == V2_FIELDS


def test_long_names_give_the_same_attributes() -> None:
    names = dict(
        zip(
            "abcdefghijklmn",
            (
                "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
                "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
                "batch", "bname",
            ),
            strict=True,
        )
    )  # fmt: skip
    header = read_fields({names[key]: value for key, value in V2_FIELDS.items()}).decode(SendRequest)
    for name in SendRequestV2.__struct_fields__:
        assert getattr(header, name) == getattr(V2_HEADER, name)


def test_number_where_a_text_is_expected() -> None:
    header = read_fields({"consumerGroup": 12, "topic": True, "queueId": 3}).decode(QueryOffsetRequest)
    assert header == QueryOffsetRequest(consumer_group="12", topic="true", queue_id=3)


def test_literals_keep_their_text() -> None:
    command = read('{"code":1,"extFields":{"a":1.50,"b":-0,"c":[1, 2],"d":{"x" : null},"e":null,"f":"null"}}')
    assert command.fields == {"a": "1.50", "b": "-0", "c": "[1, 2]", "d": '{"x" : null}', "f": "null"}


def test_null_field_is_absent() -> None:
    assert read_fields({**V2_FIELDS, "n": None, "j": None}).decode(SendRequestV2).broker_name is None
    with pytest.raises(BadRequest, match="the field b is missing"):
        read_fields({**V2_FIELDS, "b": None}).decode(SendRequestV2)


def test_unknown_fields_and_keys_are_ignored() -> None:
    command = read(
        '{"code":14,"new":{"x":[1]},"extFields":{"consumerGroup":"g","topic":"t","queueId":"1","ns":"x"}}'
    )
    assert command.decode(QueryOffsetRequest).queue_id == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("yes", False), ("", False)],
)
def test_boolean_is_true_only_for_true(text: str, value: bool) -> None:
    assert read_fields({**V2_FIELDS, "k": text}).decode(SendRequestV2).is_unit_mode is value


@pytest.mark.parametrize("text", ["x", "", "1.5", "0x10", "2147483648", "9" * 5000])
def test_bad_number_names_the_wire_field(text: str) -> None:
    with pytest.raises(BadRequest, match="the field e must be"):
        read_fields({**V2_FIELDS, "e": text}).decode(SendRequestV2)


@pytest.mark.parametrize("text", ["+3", "003", " 3"])
def test_number_as_java_also_reads_it(text: str) -> None:
    assert read_fields({**V2_FIELDS, "e": text}).decode(SendRequestV2).queue_id == 3


def test_limits_of_int64() -> None:
    fields = {"topic": "t", "queueId": "0", "timestamp": str(2**63 - 1)}
    assert read_fields(fields).decode(SearchOffsetRequest).timestamp_ms == 2**63 - 1
    with pytest.raises(BadRequest, match="timestamp"):
        read_fields({**fields, "timestamp": str(2**63)}).decode(SearchOffsetRequest)


@pytest.mark.parametrize("boundary", ["UPPER", "upper", "Upper"])
def test_upper_boundary_in_any_case(boundary: str) -> None:
    fields = {"topic": "t", "queueId": "0", "timestamp": "1", "boundaryType": boundary}
    assert read_fields(fields).decode(SearchOffsetRequest).is_upper


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ('"JAVA"', LanguageCode.JAVA),
        ('"GO"', LanguageCode.GO),
        ("3", LanguageCode.PYTHON),
        ('"KLINGON"', LanguageCode.OTHER),
        ("99", LanguageCode.OTHER),
        ("-1", LanguageCode.OTHER),
        ("null", LanguageCode.OTHER),
    ],
)
def test_language_by_name_or_ordinal(text: str, language: LanguageCode) -> None:
    assert read(f'{{"code":1,"language":{text}}}').language == language


def test_only_the_code_is_needed() -> None:
    command = read('{"code":34}')
    assert (command.code, command.opaque, command.flag, command.version, command.remark) == (
        34,
        0,
        0,
        0,
        None,
    )
    assert command.fields == {}


def test_numbers_as_text() -> None:
    command = read('{"code":"105","opaque":"-7","flag":"1","version":"479"}')
    assert (command.code, command.opaque, command.flag, command.version) == (105, -7, 1, 479)


@pytest.mark.parametrize(
    ("text", "remark"), [("null", None), ('""', ""), ('"x"', "x"), ("5", "5"), ("[1]", "[1]")]
)
def test_remark_of_any_kind(text: str, remark: str | None) -> None:
    assert read(f'{{"code":1,"remark":{text}}}').remark == remark


@pytest.mark.parametrize("text", ["", "null", "{}"])
def test_fields_may_be_missing_null_or_empty(text: str) -> None:
    header = '{"code":1' + (f',"extFields":{text}' if text else "") + "}"
    assert read(header).fields == {}


def test_loose_header_is_read() -> None:
    command = read("{code:105,'opaque':3,extFields:{'topic':'T',\"n\":5,},}")
    assert (command.code, command.opaque) == (105, 3)
    assert command.fields == {"topic": "T", "n": "5"}


def test_raw_control_characters_in_a_text() -> None:
    command = read('{"code":310,"extFields":{"i":"KEYS\x01k\x02"}}')
    assert command.fields == {"i": "KEYS\x01k\x02"}


def test_non_ascii_in_both_spellings() -> None:
    assert read('{"code":1,"extFields":{"topic":"主题"}}').fields == {"topic": "主题"}
    assert read('{"code":1,"extFields":{"topic":"\\u4e3b\\u9898"}}').fields == {"topic": "主题"}


def test_half_a_surrogate_pair_reads_as_question_mark() -> None:
    assert read('{"code":1,"extFields":{"topic":"a\\ud800b"}}').fields == {"topic": "a?b"}


BAD_HEADERS = {
    "empty": b"",
    "no object": b"[]",
    "no code": b'{"opaque":1}',
    "null code": b'{"code":null}',
    "code of letters": b'{"code":"x"}',
    "code is a map": b'{"code":{}}',
    "code is a boolean": b'{"code":true}',
    "code beyond 32 bits": b'{"code":4294967296}',
    "opaque beyond 32 bits": b'{"code":1,"opaque":2147483648}',
    "endless code": b'{"code":' + b"9" * 10_000 + b"}",
    "infinite code": b'{"code":1e999}',
    "cut": b'{"code":1',
    "text behind": b'{"code":1}x',
    "fields are a list": b'{"code":1,"extFields":[1]}',
    "fields are a text": b'{"code":1,"extFields":"x"}',
    "no UTF-8": b'{"code":1,"extFields":{"a":"\xff"}}',
    "no UTF-8 in remark": b'{"code":1,"remark":"\xff"}',
    "deep": b'{"code":1,"remark":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep and cut": b"[" * 100_000,
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_unreadable_header_is_the_peers_fault(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(header)


def test_a_deep_field_is_text_or_refused() -> None:
    """The depth that msgspec skips differs between versions of Python."""
    deep = "[" * 50_000 + "]" * 50_000
    try:
        fields = read(b'{"code":1,"extFields":{"a":' + deep.encode() + b"}}").fields
    except RemoteProtocolError:
        return
    assert fields == {"a": deep}


def test_written_header_is_strict_json_without_nulls() -> None:
    response = SendResponse(message_id='id"\\', queue_id=3, queue_offset=2**40)
    text = encode_header_json(Command(0, 9, 1, header=response, remark="線\x01"))
    value = json.loads(text)
    assert value["extFields"] == {
        "msgId": 'id"\\', "queueId": "3", "queueOffset": str(2**40),
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    assert value["remark"] == "線\x01"
    assert (value["code"], value["opaque"], value["flag"], value["version"]) == (0, 9, 1, 479)
    assert b" " not in text


def test_written_header_always_has_fields() -> None:
    value = json.loads(encode_header_json(Command(0, 1, 1)))
    assert value["extFields"] == {}
    assert "remark" not in value


def test_extra_fields_join_and_win() -> None:
    response = SendResponse(message_id="m", queue_id=1, queue_offset=2)
    command = Command(0, header=response, extra_fields={"TRACE_ON": "false", "x": "y"})
    fields = json.loads(encode_header_json(command))["extFields"]
    assert fields["TRACE_ON"] == "false"
    assert fields["x"] == "y"
    assert fields["msgId"] == "m"
    assert command.fields == fields


def test_received_command_can_be_sent_on() -> None:
    command = read_fields({"a": 1, "b": "x"})
    assert json.loads(encode_header_json(command))["extFields"] == {"a": "1", "b": "x"}


@pytest.mark.parametrize("command", [Command(1, remark="\ud800"), Command(1, extra_fields={"a": "\udfff"})])
def test_half_a_surrogate_pair_cannot_be_written(command: Command) -> None:
    with pytest.raises(LocalProtocolError):
        encode_header_json(command)


def test_typed_header_of_a_command_to_send() -> None:
    command = Command.request(310, V2_HEADER)
    assert command.decode(SendRequestV2) is V2_HEADER
    assert command.fields == V2_FIELDS
    assert Command.request(14, fields={"consumerGroup": "g", "topic": "t", "queueId": "1"}).decode(
        QueryOffsetRequest
    ) == QueryOffsetRequest(consumer_group="g", topic="t", queue_id=1)
