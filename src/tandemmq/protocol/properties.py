"""The properties of a message: `name 0x01 value 0x02` repeated, as bytes and as a dict; their names; and the
property of numbered sends.

The last 0x02 may be missing (Java 4.9.1 to 5.1.4). Pieces shorter than three characters or with an empty name
or value are ignored; on duplicate names the later pair wins. There is no escaping, so a name may contain
neither separator, and a value no 0x02. Undecodable UTF-8 becomes U+FFFD, as in Java.
Source:  spec store 3, spec remoting 12.4 and 12.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tandemmq.errors import LocalProtocolError, MessageIllegal

PROPERTIES_BYTES_MAX: Final = 32767
PRIORITY_MAX: Final = 2**31 - 1
_PRIORITY_DIGITS_MAX: Final = 10

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
UNIQ_KEY: Final = "UNIQ_KEY"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
POP_CK: Final = "POP_CK"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"
INSTANCE_ID: Final = "INSTANCE_ID"
BUYER_ID: Final = "BUYER_ID"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
SHARDING_KEY: Final = "__SHARDINGKEY"
BORN_HOST: Final = "__BORNHOST"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"
CRC32: Final = "__CRC32#"

# Reserved names that a user may set nevertheless (spec semantics 1.4).
_SETTABLE: Final = frozenset(
    (
        "PROPERTY_FORWARD_QUEUE_ID",
        "REDIRECT",
        "__SHARDINGKEY",
        "TRACE_CONTEXT",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRANSACTION_CHECK_TIMES",
        "__transactionId__",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
    )
)

_SYSTEM_NAMES: Final = (
    "KEYS TAGS WAIT DELAY BUYER_ID UNIQ_KEY EXTEND_UNIQ_INFO DUP_INFO RETRY_TOPIC REAL_TOPIC REAL_QID "
    "RECONSUME_TIME MAX_RECONSUME_TIMES ORIGIN_MESSAGE_ID CONSUME_START_TIME DLQ_ORIGIN_TOPIC "
    "DLQ_ORIGIN_MESSAGE_ID TRAN_MSG PGROUP __transactionId__ TRANSACTION_CHECK_TIMES "
    "CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET MIN_OFFSET MAX_OFFSET MSG_REGION TRACE_ON "
    "TRACE_CONTEXT CLUSTER INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL MSG_TYPE ARRIVE_TIME "
    "PUSH_REPLY_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TIMER_DELIVER_MS TIMER_DELAY_SEC TIMER_DELAY_MS "
    "TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL "
    "INNER_NUM INNER_BASE INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET __SHARDINGKEY __BORNHOST "
    "BORN_TIMESTAMP __CRC32# PROPERTY_FORWARD_QUEUE_ID REDIRECT TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG "
    "_SYS_MSG_PRIORITY_ __LITE_TOPIC "
)
SYSTEM_NAMES: Final = frozenset(_SYSTEM_NAMES.split())
"""The names with a meaning to brokers and clients."""

RESERVED: Final = SYSTEM_NAMES - _SETTABLE
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."


def is_reserved(name: str) -> bool:
    """Returns True for a name that only the system may set."""
    return name in RESERVED or name.startswith(TRANSIENT_PREFIX)


def parse_priority(value: str | None) -> int | None:
    """Returns the priority that a PRIORITY property holds; None without a valid one (spec rocketmq55 5)."""
    if value is None or not (value.isascii() and value.isdecimal() and len(value) <= _PRIORITY_DIGITS_MAX):
        return None
    return priority if (priority := int(value)) <= PRIORITY_MAX else None


def encode_properties(properties: Mapping[str, str], errors: str = "replace") -> bytes:
    """Returns the wire form; pairs with an empty value are left out, because no reader sees them. `errors` is
    that of `str.encode`, for lone surrogates: Java writes '?', as "replace" does.

    Raises:  LocalProtocolError if a name is empty or contains a separator, or a value contains 0x02.
    """
    pairs = [f"{name}\x01{value}\x02" for name, value in properties.items() if value]
    text = "".join(pairs)
    count = len(pairs)
    if text.count("\x02") != count or text.count("\x01") != count or "" in properties:
        _check_pairs(properties)
    return text.encode("utf-8", errors)


def split_keys(text: str) -> tuple[str, ...]:
    """Returns the keys of the property KEYS; only spaces separate them, as in the index (spec store 2)."""
    return tuple(filter(None, text.split(" ")))


def _check_pairs(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name:
            raise LocalProtocolError(f"property name {name!r}: must be non-empty, without the bytes 1 and 2")
        if "\x02" in value:
            raise LocalProtocolError(f"property {name!r}: its value must not hold the byte 2")


def decode_properties(raw: bytes | bytearray | memoryview) -> dict[str, str]:
    """Returns the pairs in order; invalid pieces are ignored."""
    text = str(raw, "utf-8", "replace")
    pieces = text.split("\x02")
    # Nearly always all pieces are pairs, except the empty one at the end.
    if text[-1:] == "\x02" and text[0] != "\x01" and "\x01\x02" not in text and "\x02\x01" not in text:
        try:
            return dict([piece.split("\x01", 1) for piece in pieces[:-1]])
        except ValueError:  # a piece has no separator
            return _decode_pieces(pieces)
    return _decode_pieces(pieces)


def _decode_pieces(pieces: list[str]) -> dict[str, str]:
    properties: dict[str, str] = {}
    for piece in pieces:
        name, separator, value = piece.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """Returns one value from the wire form, equal to that of `decode_properties`; None if absent."""
    mark = name + b"\x01"
    start = raw.rfind(mark)
    while start >= 0:
        if start == 0 or raw[start - 1] == 2:
            begin = start + len(mark)
            end = raw.find(b"\x02", begin)
            if end < 0:
                end = len(raw)
            if end > begin:
                return raw[begin:end]
        start = raw.rfind(mark, 0, start)
    return None


def property_mark(name: str) -> bytes:
    """Returns the search text for `find_properties`."""
    return f"\x02{name}\x01".encode()


def find_properties(raw: bytes, marks: Sequence[bytes]) -> tuple[bytes | None, ...]:
    """Like `find_property` for several names, identified by their marks, at half the cost."""
    closed = b"\x02%b\x02" % raw
    values: list[bytes | None] = []
    for mark in marks:
        at = closed.rfind(mark)
        if at < 0:
            values.append(None)
            continue
        begin = at + len(mark)
        value = closed[begin : closed.find(b"\x02", begin)]
        values.append(value or find_property(raw, mark[1:-1]))  # a pair without a value is ignored
    return tuple(values)


def append_property(raw: bytes, name: str, value: str) -> bytes:
    """Returns `raw` with a pair appended, which takes precedence over earlier pairs of the same name; adds a
    missing last separator.
    """
    pair = f"{name}\x01{value}\x02".encode()
    if raw and raw[-1] != 2:
        return b"%b\x02%b" % (raw, pair)
    return raw + pair


def remove_property(raw: bytes, name: bytes) -> bytes:
    """Returns `raw` without any pair of that name; the same object if there is none."""
    mark = name + b"\x01"
    if mark not in raw:
        return raw
    return b"\x02".join(piece for piece in raw.split(b"\x02") if not piece.startswith(mark))


def check_properties_size(raw: bytes | memoryview) -> None:
    """Checks the size. Raises MessageIllegal above 32767 bytes, the limit of a record's length field."""
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"the message properties have {len(raw)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed"
        )


# The format of numbered sends, shared by clients and brokers (decision 010). Ours, not RocketMQ's.

CLAIM_PROPERTY = f"{TRANSIENT_PREFIX}TANDEM_SEQ"
CLAIM_VERSION = "1"
NO_PREDECESSOR = "-"
PREFIX_DIGITS = 20

CAPABILITY = "tandemExactlyOnce"
"""The key in the runtime info of a broker that stores numbered sends once; its value is CLAIM_VERSION."""


def render_claim(producer: str, epoch: int, after: str) -> str:
    """Returns the properties of a numbered send; `after` empty: the first one of the epoch."""
    value = f"{CLAIM_VERSION},{producer},{epoch},{after or NO_PREDECESSOR}"
    return f"{CLAIM_PROPERTY}\x01{value}\x02"
