"""Samples for tests: an Avro schema, a Protobuf descriptor, bodies of both, and a schema registry."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AVRO = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        },
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "counts", "type": {"type": "map", "values": "int"}}],
                },
            },
        },
    ],
}
OLD_AVRO = {**AVRO, "fields": [one for one in AVRO["fields"] if one["name"] not in ("name", "at")]}
"""The schema that earlier writers used."""


def write_avro(value: dict[str, Any], schema: dict[str, Any], number: int | None = None) -> bytes:
    """Returns a body, with the header of a registry if a schema id is given."""
    import fastavro

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + stream.getvalue()


def make_descriptors() -> bytes:
    """Returns the descriptors of `message Order { int64 id = 1; optional string name = 2; repeated Item items
    = 3; Kind kind = 4; map<string, uint64> counts = 5; }` in the package `shop`.
    """
    from google.protobuf import descriptor_pb2 as pb

    file = pb.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(("PLAIN", "GIFT")):
        kinds.value.add(name=name, number=number)
    one, many = pb.FieldDescriptorProto.LABEL_OPTIONAL, pb.FieldDescriptorProto.LABEL_REPEATED
    types = pb.FieldDescriptorProto
    item = file.message_type.add(name="Item")
    item.field.add(name="price", number=1, type=types.TYPE_DOUBLE, label=one)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=types.TYPE_INT64, label=one)
    order.oneof_decl.add(name="_name")
    order.field.add(
        name="name", number=2, type=types.TYPE_STRING, label=one, oneof_index=0, proto3_optional=True
    )
    order.field.add(name="items", number=3, type=types.TYPE_MESSAGE, type_name=".shop.Item", label=many)
    order.field.add(name="kind", number=4, type=types.TYPE_ENUM, type_name=".shop.Kind", label=one)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=types.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=types.TYPE_UINT64, label=one)
    order.field.add(
        name="counts", number=5, type=types.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=many
    )
    return pb.FileDescriptorSet(file=[file]).SerializeToString()


@contextmanager
def registry(schemas: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Yields the address of a registry that knows these schemas."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.rpartition("/")[2])
            found = schemas.get(number)
            body = json.dumps({"schema": json.dumps(found)} if found else {"error_code": 40403}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
