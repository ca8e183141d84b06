"""`tandemmq debug bundle`: one archive for a report of a problem, without messages and without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import to_builtins

from tandemmq import __version__
from tandemmq.api import broker_admin, nameserver
from tandemmq.client.options import parse_name_servers
from tandemmq.errors import BrokerUnreachable, ConfigError, TandemError
from tandemmq.manage.groups import read_groups
from tandemmq.manage.settings import describe_settings, is_tandem
from tandemmq.manage.tools import Target, Tools, find_targets, open_tools
from tandemmq.manage.topics import read_topics
from tandemmq.shell import local
from tandemmq.shell.doctor import examine
from tandemmq.shell.session import NameServers, find_name_servers, note, run
from tandemmq.units import MIB

app = typer.Typer(help="Collect what helps to find a fault.", add_completion=False, no_args_is_help=True)

LOG_BYTES_MAX: Final = 1 * MIB
LOGS_MAX: Final = 64


@app.callback()
def _debug() -> None:
    pass


@app.command("bundle")
def bundle(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The archive to write.", metavar="[FILE]", show_default="tandemmq-debug-TIME.tar.gz here"
        ),
    ] = None,
    namesrv: NameServers = "",
) -> None:
    """Write an archive of versions, settings without secrets, routes, states, the doctor's findings, and the
    ends of the logs of `tandemmq up`. It contains no messages. Parts that cannot be read are listed in it.
    """
    servers = find_name_servers(namesrv)
    name = time.strftime("tandemmq-debug-%Y%m%d-%H%M%S", time.gmtime())
    path = file or Path(f"{name}.tar.gz")

    async def work() -> int:
        try:
            async with open_tools(servers) as tools:
                parts = await collect(tools, servers)
        except BrokerUnreachable:  # no name server answers; the rest is worth the more
            async with open_tools("") as tools:
                parts = await collect(tools, servers)
        write_archive(path, name, parts)
        note("look through the archive before you send it: names of topics, groups and hosts are in it")
        typer.echo(str(path))
        return 0

    run(work)


async def collect(tools: Tools, servers: str) -> dict[str, bytes]:
    """Returns the content of the archive, as file name -> bytes."""
    parts: dict[str, bytes] = {}
    failed: dict[str, str] = {}

    async def add(name: str, read: Callable[[], Awaitable[Any]]) -> None:
        try:
            parts[f"{name}.json"] = _as_json(await read())
        except TandemError as error:
            failed[name] = str(error)

    async def doctor() -> Any:
        return [asdict(one) for one in await examine(tools, parse_name_servers(servers), for_production=True)]

    parts["versions.json"] = _as_json(_versions())
    await add("doctor", doctor)
    await add("cluster", lambda: tools.cluster_admin.cluster_info())
    await add("topics", partial(_topics, tools))
    await add("groups", partial(_groups, tools))
    for address in parse_name_servers(servers):
        await add(f"name-servers/{_file_name(address)}", partial(_name_server, tools, address))
    try:
        targets = await find_targets(tools)
    except TandemError as error:
        targets = []
        failed["brokers"] = str(error)
    for target in targets:
        folder = f"brokers/{target.broker_name}-{target.broker_id}"
        await add(folder, partial(_broker, tools, target))
    local_folder = local.default_folder()
    for path in _logs(local_folder):
        name = f"logs/{'-'.join(path.relative_to(local_folder).parts)}"
        try:
            parts[name] = _end_of(path)
        except OSError as error:
            failed[name] = str(error.strerror)
    parts["not-read.json"] = _as_json(failed)
    return parts


def write_archive(path: Path, folder: str, parts: Mapping[str, bytes]) -> None:
    """Writes the parts into a new archive that only its owner can read. Raises ConfigError if the file exists
    or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in sorted(parts.items()):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime = len(data), int(time.time())
            archive.addfile(member, io.BytesIO(data))


def _versions() -> dict[str, Any]:
    return {
        "tandemmq": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": {one.name: one.version for one in distributions()},
    }


async def _topics(tools: Tools) -> Any:
    found = await read_topics(tools)
    return {name: to_builtins(dict(one.configs)) for name, one in found.topics.items()}


async def _groups(tools: Tools) -> Any:
    found = await read_groups(tools)
    return {name: to_builtins(dict(one.configs)) for name, one in found.groups.items()}


async def _name_server(tools: Tools, address: str) -> Any:
    return _without_secrets(await nameserver.query_config(tools.remoting, address), is_tandem=False)


async def _broker(tools: Tools, target: Target) -> Any:
    facts = await broker_admin.query_runtime_info(tools.remoting, target.address)
    settings = await broker_admin.query_broker_config(tools.remoting, target.address)
    return {
        "address": target.address,
        "runtime": facts,
        "settings": _without_secrets(settings, is_tandem=is_tandem(facts)),
        "replication": to_builtins(await broker_admin.query_ha_status(tools.remoting, target.address)),
    }


def _without_secrets(settings: Mapping[str, str], *, is_tandem: bool) -> dict[str, str]:
    return {row.key: row.value for row in describe_settings(settings, is_tandem=is_tandem)}


def _logs(folder: Path) -> list[Path]:
    """Returns the logs of a local cluster."""
    return sorted({*folder.glob("*.log"), *folder.glob("*/log"), *folder.glob("*/log.1")})[:LOGS_MAX]


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return file.read(LOG_BYTES_MAX)


def _file_name(address: str) -> str:
    return address.replace(":", "-").replace("/", "-")


def _as_json(value: Any) -> bytes:
    return json.dumps(to_builtins(value, str_keys=True), indent=2, default=str).encode() + b"\n"
