"""`tandemmq store backup` copies the store of a running broker; `restore` makes a store of the copy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandemmq import __version__
from tandemmq.api import broker_admin
from tandemmq.errors import StoreError, TandemError
from tandemmq.manage.settings import read_settings_of
from tandemmq.manage.tools import open_tools
from tandemmq.protocol.bodies.codec import BOOT_KEY, CONFIRMED_KEY
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store_command import frame

if TYPE_CHECKING:
    from tandemmq.store_command.backup_files import BackupManifest

Show = Callable[[str, int, int], None]
Backup = Annotated[Path, typer.Argument(help="The directory of the backup.", metavar="BACKUP")]


def backup(
    directory: Backup,
    broker: Annotated[
        str,
        typer.Option(
            "-b",
            "--brokerAddr",
            help="The running broker, best a slave; its store must be on this machine.",
            metavar="HOST:PORT",
        ),
    ],
    as_json: frame.AsJson = False,
) -> None:
    """Copy the store of a running broker up to its confirmed offset, or update an earlier backup."""
    from tandemmq.store_command.backup_files import back_up

    try:
        settings, facts = asyncio.run(_ask(broker))
    except TandemError as error:
        frame.fail(str(error))
    if BOOT_KEY not in facts:
        frame.fail(f"{broker} is not a TandemMQ broker of this version: stop it and copy its directory")
    if facts[BOOT_KEY] != RealDisk().boot_id():  # a store at the same path would be another broker's
        frame.fail(f"{broker} runs on another machine: run this command there")
    root, log_dir = Path(settings["storePathRootDir"]), Path(settings["storePathCommitLog"])

    def work(show: Show) -> BackupManifest:
        return back_up(
            root,
            log_dir,
            directory,
            partial(_read_confirmed, broker),
            _counter(show, int(facts[CONFIRMED_KEY]) - int(facts["commitLogMinOffset"])),
            made_at_ms=LoopClock().now_ms(),
            version=__version__,
        )

    manifest = frame.guarded(work)
    values = {"backup": str(directory), "begin": manifest.begin, "end": manifest.end}
    sentence = f"{broker} is backed up in {directory}: log offsets {manifest.begin:,} to {manifest.end:,}"
    typer.echo(json.dumps(values) if as_json else sentence)


def restore(
    backup: Backup, directory: frame.Root, config: frame.BrokerFile = None, as_json: frame.AsJson = False
) -> None:
    """Make a new store from a backup, and check it; a broker can be started on it then.

    Exit code 1 if the backup is damaged.
    """
    from tandemmq.store.inspect import RepairOptions, RepairReport, StoreReport, check_store, repair_store
    from tandemmq.store_command.backup_files import copy_back, new_store, read_manifest

    settings = frame.broker_settings(config)

    def work(show: Show) -> tuple[BackupManifest, list[str], RepairReport, StoreReport]:
        manifest = read_manifest(backup)
        with new_store(directory) as root:
            damaged = copy_back(backup, root, _counter(show, manifest.end - manifest.begin))
            inspect = frame.inspect_options(root, root / "commitlog", settings, check_crc=True)
            options = RepairOptions(
                inspect=inspect,
                has_index=settings is None or settings.key_index_enable,
                queue_file_bytes=None if settings is None else settings.consume_queue_file_bytes,
            )
            return manifest, damaged, repair_store(options, RealDisk(), show), check_store(inspect, show)

    manifest, damaged, repaired, report = frame.guarded(work)
    is_log_whole = report.is_clean and not repaired.is_refused and report.log_end == manifest.end
    is_whole = is_log_whole and not damaged
    values = {"store": str(directory), "records": report.record_count, "end": report.log_end}
    sentence = f"{directory} has {report.record_count:,} records in {report.queue_count} queues"
    typer.echo(json.dumps(values | {"is_whole": is_whole}) if as_json else sentence)
    for name in damaged:
        typer.echo(f"tandemmq: {backup / name} is missing, or not as it was copied", err=True)
    if not is_log_whole:
        text = f"the log ends at {report.log_end:,} instead of {manifest.end:,}, or is damaged"
        typer.echo(f"tandemmq: {text}: `tandemmq store check {directory}`", err=True)
    if not is_whole:
        raise typer.Exit(frame.EXIT_DAMAGED)


async def _ask(address: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the settings and the runtime information of the broker."""
    async with open_tools("") as tools:
        settings = await read_settings_of(tools, address)
        return settings, dict(await broker_admin.query_runtime_info(tools.remoting, address))


def _read_confirmed(address: str) -> int:
    """Returns the confirmed offset. Raises StoreError if the broker does not answer any more."""
    try:
        _, facts = asyncio.run(_ask(address))
    except TandemError as error:
        raise StoreError(str(error)) from error
    return int(facts[CONFIRMED_KEY])


def _counter(show: Show, total: int) -> Callable[[int], None]:
    """Returns a function that adds copied bytes to a progress bar."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        show("copying", done, max(total, done))

    return add
