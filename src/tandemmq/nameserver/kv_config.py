"""The KV configuration: namespaces of key-value texts, the bytes of their file, and the requests that read
and change them: 100, 101, 102, 219 (spec nameserver 8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tandemmq.errors import ConfigError, RemoteProtocolError, RequestRejected, TandemError
from tandemmq.protocol.bodies.codec import decode_object, encode_body, encode_kv_table
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.loose_json import LARGE_TEXT, text_map
from tandemmq.protocol.requests import route as headers
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Disk
from tandemmq.telemetry import events
from tandemmq.units import MIB, Buffer

log = logging.getLogger(__name__)


class KvTable:
    """The namespaces, as namespace -> key -> value. A namespace stays when its last key is deleted."""

    def __init__(self, namespaces: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._namespaces = {name: dict(table) for name, table in (namespaces or {}).items()}

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Returns all keys of a namespace; None when it does not exist."""
        return self._namespaces.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        self._namespaces.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        self._namespaces.get(namespace, {}).pop(key, None)

    def replace_all(self, other: KvTable) -> None:
        """Replaces the content by that of another table."""
        self._namespaces = other._namespaces

    def copy(self) -> KvTable:
        return KvTable(self._namespaces)

    def encode(self) -> bytes:
        return encode_body({"configTable": self._namespaces})


def decode_kv_file(data: Buffer) -> KvTable:
    """Decodes a `kvConfig.json`, written by TandemMQ or by Java.

    Raises:  RemoteProtocolError for other content.
    """
    tables = decode_object(data, LARGE_TEXT).get("configTable")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise RemoteProtocolError("there is no configTable of namespaces")
    return KvTable({namespace: text_map(table) for namespace, table in tables.items()})


FILE_BYTES_MAX: Final = 8 * MIB
"""TandemMQ's bound on the file: a change that makes it larger is rejected. Each change writes the whole
file.
"""


class KvConfig:
    """The KV configuration and its file. `table` follows the file: a change is visible, and answered, once it
    is on disk.
    """

    def __init__(
        self, path: Path, *, disk: Disk, checks: Mapping[str, Callable[[str, str], None]] | None = None
    ) -> None:
        """Creates the configuration. `checks` by namespace reject a new value (key, value) by
        RequestRejected.
        """
        self._checks = checks or {}
        self.table = KvTable()
        self._path = path
        self._disk = disk
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Loads the file, or its backup if the file cannot be read; without either, the table is empty.

        Raises:  ConfigError when a file exists but none can be read: starting empty would lose it for good.
        """
        reason = ""
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            if not self._disk.exists(path):
                continue
            try:
                self.table.replace_all(decode_kv_file(self._disk.read_bytes(path)))
            except (TandemError, OSError) as error:
                reason = f"{path}: {error}"
                log.warning(events.KV_CONFIG_UNREADABLE, extra={"path": str(path), "reason": str(error)})
                continue
            return
        if reason:
            raise ConfigError(f"kvConfigPath: neither the file nor its .bak can be read: {reason}")

    async def handle_put(self, channel: Channel, command: Command) -> Command:
        """Handles PUT_KV_CONFIG (100); answers once the value is on disk."""
        header = command.decode(headers.PutKvRequest)
        check = self._checks.get(header.namespace)
        if check is not None:
            check(header.key, header.value)
        await self._change(lambda table: table.put(header.namespace, header.key, header.value))
        return command.reply()

    async def handle_delete(self, channel: Channel, command: Command) -> Command:
        """Handles DELETE_KV_CONFIG (102); a missing key is not an error."""
        header = command.decode(headers.DeleteKvRequest)
        await self._change(lambda table: table.delete(header.namespace, header.key))
        return command.reply()

    def handle_get(self, channel: Channel, command: Command) -> Command:
        """Handles GET_KV_CONFIG (101). Raises RequestRejected (QUERY_NOT_FOUND)."""
        header = command.decode(headers.GetKvRequest)
        value = self.table.get(header.namespace, header.key)
        if value is None:
            raise _not_found(f"no key {header.key} in namespace {header.namespace}")
        return command.reply(header=headers.GetKvResponse(value=value))

    def handle_list(self, channel: Channel, command: Command) -> Command:
        """Handles GET_KVLIST_BY_NAMESPACE (219). Raises RequestRejected (QUERY_NOT_FOUND)."""
        header = command.decode(headers.KvListRequest)
        table = self.table.namespace(header.namespace)
        if table is None:
            raise _not_found(f"no namespace {header.namespace}")
        return command.reply(body=encode_kv_table(table))

    async def _change(self, change: Callable[[KvTable], None]) -> None:
        """Makes one change at a time. Raises OSError or RequestRejected; nothing has changed then."""
        async with self._writing:
            changed = self.table.copy()
            change(changed)
            data = changed.encode()
            if len(data) > FILE_BYTES_MAX and len(data) > len(self.table.encode()):
                raise RequestRejected(f"the KV configuration would have more than {FILE_BYTES_MAX} bytes")
            write = partial(self._disk.write_atomically, self._path, data, keep_backup=True)
            await self._disk.offload(write)
            self.table.replace_all(changed)


def _not_found(remark: str) -> RequestRejected:
    return RequestRejected(remark, code=ResponseCode.QUERY_NOT_FOUND)
