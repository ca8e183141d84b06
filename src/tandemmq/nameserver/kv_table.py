"""KvTable: namespaces of key-value texts, with the bytes of their file; pure.

Source:  spec nameserver 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import decode_plain, encode_body
from tandemmq.protocol.command import Buffer
from tandemmq.protocol.loose_json import text_map

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Topic -> `broker:queues;...`, the fixed queues of ordered topics."""


class KvTable:
    """Namespace -> key -> value. A namespace stays when its last key is deleted."""

    def __init__(self, namespaces: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._namespaces = {name: dict(table) for name, table in (namespaces or {}).items()}

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All of a namespace; None when there is none."""
        return self._namespaces.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        self._namespaces.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        self._namespaces.get(namespace, {}).pop(key, None)

    def replace_all(self, other: KvTable) -> None:
        """Takes the content of another table."""
        self._namespaces = other._namespaces

    def copy(self) -> KvTable:
        return KvTable(self._namespaces)

    def encode(self) -> bytes:
        return encode_body({"configTable": self._namespaces})


def decode_kv_file(data: Buffer) -> KvTable:
    """The table of a `kvConfig.json`, ours or Java's.

    Raises:  RemoteProtocolError when it is not one.
    """
    value = decode_plain(data)
    tables = value.get("configTable") if isinstance(value, dict) else None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise RemoteProtocolError("there is no configTable of namespaces")
    return KvTable({namespace: text_map(table) for namespace, table in tables.items()})
