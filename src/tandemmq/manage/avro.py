"""Avro for display: values of a body, by a schema that the operator gives or that an object container file
embeds.

An embedded schema is the sender's, so it is hostile: arrays of values without bytes would never end, and deep
values overflow the stack of a reader in C. This reader bounds the count and depth of values. Landing
pipelines, whose schema is the operator's, read with `fastavro`.
Invariants: no schema and no bytes raise anything but `BodyUnreadable`.
At a bound: `BodyUnreadable`; a container's values before the bound are returned.
Source: the Avro 1.12 specification.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from tandemmq.protocol.schema_header import BodyUnreadable

CONTAINER_MAGIC: Final = b"Obj\x01"
SINGLE_OBJECT_MAGIC: Final = b"\xc3\x01"
"""The begin of a body in single-object encoding; the fingerprint of its schema follows in eight bytes."""
SINGLE_OBJECT_BYTES: Final = 10
VALUES_MAX: Final = 20_000
DEPTH_MAX: Final = 64
BLOCK_BYTES_MAX: Final = 4 << 20
"""The most bytes to which the compressed blocks of a container may inflate together."""
_SYNC_BYTES: Final = 16
_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed schema: its root, and its named types by full and by short name."""

    root: Any
    named: dict[str, Any]


def parse_schema(text: str | bytes) -> AvroSchema:
    """Returns the schema. Raises BodyUnreadable for an invalid schema."""
    named: dict[str, Any] = {}
    with _unreadable("the Avro schema cannot be read"):
        root = json.loads(text)
        _collect(root, "", named, 0)
    return AvroSchema(root, named)


@contextmanager
def _unreadable(what: str) -> Iterator[None]:
    """Turns every other error into BodyUnreadable: an invalid schema fails in more ways than can be listed,
    and a page must show the reason instead of failing.
    """
    try:
        yield
    except BodyUnreadable:
        raise
    except KeyError as error:
        raise BodyUnreadable(f"{what}: {error} is missing") from None
    except Exception as error:  # noqa: BLE001  (see above)
        raise BodyUnreadable(f"{what}: {type(error).__name__}: {error}") from None


def _collect(kind: Any, namespace: str, named: dict[str, Any], depth: int) -> None:
    """Registers the named types inside `kind`, and checks the names of types."""
    if depth > DEPTH_MAX:
        raise BodyUnreadable(f"the Avro schema is nested deeper than {DEPTH_MAX} levels")
    if isinstance(kind, list):
        for one in kind:
            _collect(one, namespace, named, depth + 1)
        return
    if isinstance(kind, str):
        if kind not in _PRIMITIVES and kind not in named:
            raise BodyUnreadable(f"the Avro schema names an unknown type: {kind[:100]!r}")
        return
    base = kind["type"]
    if base in ("record", "error", "enum", "fixed"):
        name = _text_of(kind, "name")
        namespace = name.rpartition(".")[0] or str(kind.get("namespace") or namespace)
        short = name.rpartition(".")[2]
        named[short] = named[f"{namespace}.{short}"] = kind
        for one in kind["fields"] if base in ("record", "error") else ():
            _text_of(one, "name")
            _collect(one["type"], namespace, named, depth + 1)
        if base == "enum" and not all(isinstance(symbol, str) for symbol in kind["symbols"]):
            raise BodyUnreadable("the Avro schema has an enum whose symbols are not texts")
        if base == "fixed" and not 0 <= int(kind["size"]) <= BLOCK_BYTES_MAX:
            raise BodyUnreadable(f"the Avro schema has a fixed of {kind['size']} bytes")
    elif base in ("array", "map"):
        _collect(kind["items" if base == "array" else "values"], namespace, named, depth + 1)
    else:
        _collect(base, namespace, named, depth + 1)


def _text_of(kind: Any, key: str) -> str:
    """Returns a name in a schema. A long list as a name would be printed once for each value."""
    if not isinstance(kind[key], str):
        raise BodyUnreadable(f"the Avro schema has a {key} that is not a text")
    return str(kind[key])


def read_value(schema: AvroSchema, payload: bytes) -> Any:
    """Returns the one value that the bytes hold, in values of JSON. Raises BodyUnreadable."""
    reader = _ValueReader(payload, schema.named)
    with _unreadable("no Avro of that schema"):
        value = reader.read(schema.root, 0)
    left = len(payload) - reader.at
    if left:
        raise BodyUnreadable(f"no Avro of that schema: {left} bytes are left behind the value")
    return value


def read_container(body: bytes) -> tuple[list[Any], str]:
    """Returns the values of an object container file, and the reason why values are missing, if any are.

    Raises:  BodyUnreadable for an invalid header.
    """
    head = _ValueReader(body, {}, at=len(CONTAINER_MAGIC))
    facts = head.read_map("bytes", 0, is_raw=True)
    sync = head.take(_SYNC_BYTES)
    codec = facts.get("avro.codec", b"null").decode("utf-8", "replace")
    if codec not in ("null", "deflate"):
        raise BodyUnreadable(f"the Avro container is compressed by {codec[:40]!r}: only deflate is read")
    schema = parse_schema(facts.get("avro.schema", b""))
    values: list[Any] = []
    budget = _ValueBudget()
    inflated = 0
    try:
        while head.at < len(body):
            count, block = head.read_long(), head.take(head.read_long())
            if codec == "deflate":
                block = _inflate(block, BLOCK_BYTES_MAX - inflated)
                inflated += len(block)
            reader = _ValueReader(block, schema.named, budget=budget)
            with _unreadable("no Avro of that schema"):
                values += (reader.read(schema.root, 0) for _ in range(count))
            if head.take(_SYNC_BYTES) != sync:
                return values, "a block of the container has no end mark"
    except BodyUnreadable as error:
        return values, str(error)
    return values, ""


def _inflate(block: bytes, bytes_max: int) -> bytes:
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = engine.decompress(block, max(bytes_max, 1))
    except zlib.error as error:
        raise BodyUnreadable(f"a block of the container does not inflate: {error}") from None
    if not engine.eof:
        raise BodyUnreadable(f"a block is cut off, or the blocks inflate to over {BLOCK_BYTES_MAX} bytes")
    return found


@dataclass(slots=True)
class _ValueBudget:
    left: int = VALUES_MAX


@dataclass(slots=True)
class _ValueReader:
    """Reads values from bytes."""

    data: bytes
    named: dict[str, Any]
    at: int = 0
    budget: _ValueBudget = field(default_factory=_ValueBudget)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise BodyUnreadable(f"no Avro of that schema: {size} bytes are missing at byte {self.at}")
        found = self.data[self.at : self.at + size]
        self.at += size
        return found

    def read_long(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
            if shift > 63:
                raise BodyUnreadable(f"no Avro of that schema: no number ends before byte {self.at}")

    def read(self, kind: Any, depth: int) -> Any:
        """Returns the next value."""
        self.budget.left -= 1
        if self.budget.left < 0:
            raise BodyUnreadable(f"more than {VALUES_MAX} values; the rest is not shown")
        if depth > DEPTH_MAX:
            raise BodyUnreadable(f"no Avro of that schema: values are nested deeper than {DEPTH_MAX} levels")
        if isinstance(kind, list):
            index = self.read_long()
            if not 0 <= index < len(kind):
                raise BodyUnreadable(f"no Avro of that schema: its union has no branch {index}")
            return self.read(kind[index], depth + 1)
        if isinstance(kind, str):
            return self._read_plain(kind) if kind in _PRIMITIVES else self.read(self.named[kind], depth + 1)
        base, logical = kind["type"], kind.get("logicalType")
        if base in ("record", "error"):
            return {one["name"]: self.read(one["type"], depth + 1) for one in kind["fields"]}
        if base == "enum":
            index = self.read_long()
            symbols = kind["symbols"]
            return symbols[index] if 0 <= index < len(symbols) else f"symbol {index}"
        if base == "array":
            return [item for _ in self._blocks() for item in [self.read(kind["items"], depth + 1)]]
        if base == "map":
            return self.read_map(kind["values"], depth)
        value = self.take(int(kind["size"])) if base == "fixed" else self.read_raw(base, depth)
        return _show(_by_meaning(value, logical if isinstance(logical, str) else "", kind))

    def read_raw(self, kind: Any, depth: int) -> Any:
        """Returns the next value; bytes stay bytes."""
        if kind == "bytes":
            return self.take(self.read_long())
        return self.read(kind, depth + 1)

    def read_map(self, kind: Any, depth: int, *, is_raw: bool = False) -> dict[str, Any]:
        """Returns the next map; `is_raw` leaves bytes as they are."""
        read = self.read_raw if is_raw else self.read
        return {self._read_plain("string"): read(kind, depth + 1) for _ in self._blocks()}

    def _blocks(self) -> Any:
        """Yields once for each item of an array or map."""
        while count := self.read_long():
            if count < 0:
                self.read_long()  # the size of the block in bytes
            yield from range(abs(count))

    def _read_plain(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self.take(1) != b"\0"
            case "int" | "long":
                return self.read_long()
            case "float":
                return struct.unpack("<f", self.take(4))[0]
            case "double":
                return struct.unpack("<d", self.take(8))[0]
        found = self.take(self.read_long())
        return found.decode("utf-8", "replace") if kind == "string" else _show(found)


def _show(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _by_meaning(value: Any, logical: str, kind: Any) -> Any:
    """Returns a value by its logical type; unchanged if it does not fit the type."""
    try:
        if logical == "decimal" and isinstance(value, bytes):
            number = int.from_bytes(value, "big", signed=True)
            return str(Decimal(number).scaleb(-int(kind.get("scale", 0)))) if len(value) <= 64 else value
        if logical == "date" and isinstance(value, int):
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        base, _, unit = logical.rpartition("-")
        if base in ("timestamp", "local-timestamp") and unit in _TICKS and isinstance(value, int):
            when = _EPOCH + timedelta(microseconds=value * 1_000_000 // _TICKS[unit])
            return (when if base == "timestamp" else when.replace(tzinfo=None)).isoformat()
    except (ValueError, TypeError, ArithmeticError):
        return value
    return value
