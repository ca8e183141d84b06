"""Reads and writes all bodies, and defines three values shared by many of them: a table of texts, the version
of a table, the name of a queue. The other shapes are in the other files of this folder.

Writing is strict JSON without whitespace and without nulls: Go splits some texts at commas without trimming,
and pyrocketmq evaluates some as Python, where `null` is undefined (spec remoting 6). Reading tries the strict
parser first and FastJSON's dialect second. In both, absent keys and nulls become the default, numbers may be
quoted, and an enum may be its ordinal, as the C++ client writes it.

Tables of texts are KV namespaces and runtime info (spec remoting 11.8). A DataVersion identifies a state of a
table (spec remoting 11.1). A MessageQueue is the name of one queue in the cluster. FastJSON writes a map
keyed by it with whole objects as keys, `{{"brokerName":"b","queueId":0,"topic":"T"}:5}`. Go reads only this
spelling, so it is written exactly so, compact (spec remoting 6); objects and texts are accepted as keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import field, inspect

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol import loose_json
from tandemmq.protocol.loose_json import LARGE_TEXT, REQUEST_TEXT, TextBound
from tandemmq.units import Buffer


def enum_names(*names: str) -> msgspec.Meta:
    """Marks a text as an enum of Java, with its names in Java's declaration order."""
    return msgspec.Meta(extra={"enum": names})


class Body(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The base of all body shapes. Fields are in the order of their wire names, as Java writes them.

    `HAS_SETS`: everything unordered is sorted, so that equal values give equal bytes; this costs three times
    as much. `TEXT_BOUND` limits the loose texts that are read.
    """

    HAS_SETS: ClassVar[bool] = False
    TEXT_BOUND: ClassVar[TextBound] = REQUEST_TEXT


T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_LEAVES = frozenset((str, int, bool, float))
# Any: the decoder's type depends on the key, which a dict cannot express; `_decoder_of` restores it.
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode_body(value: Any, *, has_sets: bool = False) -> bytes:
    """Encodes a value as compact strict JSON without nulls; integer keys are quoted.

    With `has_sets`, as for shapes that say so themselves, everything unordered is sorted.

    Raises:  LocalProtocolError when a text holds half a surrogate pair or a value has no JSON form.
    """
    try:
        has_sets = has_sets or (isinstance(value, Body) and value.HAS_SETS)
        if not has_sets:
            text = _ENCODER.encode(value)
            # A match inside a text only costs time.
            if b":null" not in text:
                return text
        order: Literal["deterministic"] | None = "deterministic" if has_sets else None
        return _ENCODER.encode(_drop_nulls(msgspec.to_builtins(value, str_keys=True, order=order)))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


def decode_body(data: Buffer | str, shape: type[T], bound: TextBound | None = None) -> T:
    """Returns the typed value of a JSON text, strict or loose; loose texts are limited by `bound`, which is
    the shape's own by default.

    Raises:  RemoteProtocolError naming the shape and the fault.
    """
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    # `$ref` is valid strict JSON, so the strict parser would silently read the reference as an empty object.
    if b'"$ref"' not in bytes(raw):
        decoder = _DECODERS.get(shape)
        if decoder is None:
            decoder = _DECODERS[shape] = msgspec.json.Decoder(shape, strict=False)
        try:
            value: T = decoder.decode(raw)
            return value
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    limit = getattr(shape, "TEXT_BOUND", REQUEST_TEXT) if bound is None else bound
    return convert(loose_json.parse(raw, limit), shape)


def decode_object(data: Buffer, bound: TextBound = REQUEST_TEXT) -> dict[str, Any]:
    """Returns the untyped object of a JSON text, like `decode_body`; nulls are kept. Raises
    RemoteProtocolError.
    """
    return require_object(loose_json.parse(data, bound))


def require_object(value: Any) -> dict[str, Any]:
    """Returns a parsed value that must be an object. Raises RemoteProtocolError for another one."""
    if not isinstance(value, dict):
        raise RemoteProtocolError("the JSON text is not an object")
    return value


def convert(value: Any, shape: type[T]) -> T:
    """Converts a parsed value to its shape; nulls count as absent.

    Raises:  RemoteProtocolError naming the shape and the fault.
    """
    try:
        plain = _name_enums(_drop_nulls(value), _enums_of(shape))  # type: ignore[arg-type]  # types have hashes
        return msgspec.convert(plain, shape, strict=False, str_keys=True)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"a {getattr(shape, '__name__', shape)} cannot be read: {error}") from None


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    # Tuples too: msgspec keeps them where a shape has them.
    if isinstance(value, list | tuple):
        return [item if type(item) in _LEAVES else _drop_nulls(item) for item in value if item is not None]
    return value


@cache
def _enums_of(shape: Hashable) -> dict[str, tuple[str, ...]]:
    """Returns the wire name of each enum field of a body -> the enum's names in Java's order."""
    enums = {}
    waiting = [inspect.type_info(shape)]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, inspect.StructType):
            for field in kind.fields:
                waiting.append(field.type)
                if isinstance(field.type, inspect.EnumType):
                    enums[field.encode_name] = tuple(str(member.value) for member in field.type.cls)
                elif isinstance(field.type, inspect.Metadata) and field.type.extra:
                    enums[field.encode_name] = field.type.extra["enum"]
        elif isinstance(kind, inspect.UnionType):
            waiting += kind.types
        elif isinstance(kind, inspect.DictType):
            waiting.append(kind.value_type)
        elif isinstance(kind, inspect.CollectionType):
            waiting.append(kind.item_type)
    return enums


def _name_enums(value: Any, enums: dict[str, tuple[str, ...]]) -> Any:
    """Replaces ordinals by names; an enum that is an empty text is absent, as in FastJSON."""
    if not enums:
        return value
    if isinstance(value, list):
        return [_name_enums(item, enums) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: enums[key][item]
        if key in enums and type(item) is int and 0 <= item < len(enums[key])
        else _name_enums(item, enums)
        for key, item in value.items()
        if item != "" or key not in enums
    }


V = TypeVar("V")


class MessageQueue(msgspec.Struct, frozen=True, order=True, gc=False):
    """One queue of a topic on one broker; sorts by topic, broker, queue."""

    topic: str = ""
    broker_name: str = field(name="brokerName", default="")
    queue_id: int = field(name="queueId", default=0)


class _Wire(msgspec.Struct):
    """A `MessageQueue` with its keys in Java's order."""

    brokerName: str
    queueId: int
    topic: str


def encode_queue_key(queue: MessageQueue) -> bytes:
    return encode_body(_Wire(queue.broker_name, queue.queue_id, queue.topic))


def encode_queue_map(
    values: Mapping[MessageQueue, V], encode_value: Callable[[V], bytes] = encode_body
) -> bytes:
    """Encodes FastJSON's map with objects as keys; not JSON."""
    pairs = [encode_queue_key(queue) + b":" + encode_value(value) for queue, value in values.items()]
    return b"{" + b",".join(pairs) + b"}"


def convert_queue_map(value: Any, shape: type[V]) -> dict[MessageQueue, V]:
    """Returns the typed map from one parsed by `loose_json`, where each key is the text of its object.

    Raises:  RemoteProtocolError when it is not a map, or a key is not a message queue.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError("a map keyed by message queue is not a JSON object")
    return {decode_body(key, MessageQueue): convert(item, shape) for key, item in value.items()}


class DataVersion(Body, frozen=True, kw_only=True):
    """The version of a table. Two are equal only if all three fields are; any difference counts as a
    change.
    """

    counter: int = 0
    state_version: int = field(name="stateVersion", default=0)
    timestamp_ms: int = field(name="timestamp", default=0)

    def next(self, now_ms: int) -> DataVersion:
        """Returns the version after one more change."""
        return DataVersion(counter=self.counter + 1, state_version=self.state_version, timestamp_ms=now_ms)

    def of_term(self, epoch: int, now_ms: int) -> DataVersion:
        """Returns the first version of an elected master's term."""
        return DataVersion(counter=self.counter + 1, state_version=epoch, timestamp_ms=now_ms)

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key that orders older before newer."""
        return (self.state_version, self.counter, self.timestamp_ms)


REFUSALS_KEY: Final = "tandemConsumerRefusals"
"""The key in the runtime info (ours) for heartbeats, pulls and pops refused since the start."""
NEWEST_REFUSAL_KEY: Final = "tandemNewestConsumerRefusal"
SEND_REFUSALS_KEY: Final = "tandemSendRefusals"
"""The key for refused sends since the start, by response code name: `NO_PERMISSION 3, MESSAGE_ILLEGAL 1`."""
STORE_REFUSAL_KEY: Final = "tandemStoreRefusal"
"""The key for the reason why the store accepts no messages; empty while it does."""
SPEEDUPS_KEY: Final = "tandemSpeedups"
"""The key for whether the broker uses the kernel, and the reason why not."""
CONFIRMED_KEY: Final = "tandemConfirmedOffset"
"""The key for the end of the log bytes that may be read; an election never cuts below it."""
BOOT_KEY: Final = "tandemBootId"
"""The key for the identifier of the machine's boot, by which a command knows that it runs on this machine."""
DENIALS_KEY: Final = "tandemAccessDenials"
"""The key for requests denied by access control since the start."""
NEWEST_DENIAL_KEY: Final = "tandemNewestAccessDenial"
REFUSED_CONNECTIONS_KEY: Final = "tandemRefusedConnections"
"""The key for connections refused since the start because of a limit."""
HISTORY_DOUBT_KEY: Final = "tandemHistoryDoubt"
"""The key for the reason why the controllers' record, or the master, has a different history than this
broker; empty while they agree. Only in controller mode.
"""
HISTORY_DIFFERED_KEY: Final = "tandemHistoryDiffered"
"""The key for the number of times since the start that a master's log had a different history under equal
terms.
"""


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    return encode_body({"table": dict(table)})


def decode_kv_table(data: Buffer) -> dict[str, str]:
    """Returns the table of an answer; numbers and booleans become texts.

    Raises:  RemoteProtocolError.
    """
    table = decode_object(data, LARGE_TEXT).get("table")
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise RemoteProtocolError("a KV table is not a JSON object")
    return loose_json.text_map(table)
