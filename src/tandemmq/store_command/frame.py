"""The shared parts of the commands of `tandemmq store`: their options, and the frame in which each runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tandemmq.errors import StoreError, TandemError

if TYPE_CHECKING:
    from tandemmq.store.inspect import InspectOptions
    from tandemmq.store.options import StoreOptions

T = TypeVar("T")

EXIT_DAMAGED = 1
EXIT_UNREADABLE = 2

Root = Annotated[Path, typer.Argument(help="The store's directory.", metavar="DIR")]
CommitLogDir = Annotated[
    Path | None,
    typer.Option(
        "--commitlog",
        help="The CommitLog's directory.",
        show_default="commitlog in the store's directory",
        metavar="DIR",
    ),
]
BrokerFile = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        help="The broker's properties file; needed for index sizes and delay levels other than the defaults.",
        metavar="FILE",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


# Options


def broker_settings(config: Path | None) -> StoreOptions | None:
    """Returns the store options of the broker's file."""
    if config is None:
        return None
    from tandemmq.config.load import MachineFacts, load_broker, read_settings

    machine = MachineFacts(
        host_name="broker", address="127.0.0.1", memory_bytes=1 << 30, home=Path.home(), name_servers=""
    )
    try:
        return load_broker(read_settings(config, []), machine).store
    except TandemError as error:
        fail(str(error))


def inspect_options(
    root: Path, commit_log: Path | None, settings: StoreOptions | None, *, check_crc: bool
) -> InspectOptions:
    from tandemmq.store.inspect import IndexLayout, InspectOptions

    if settings is None:
        return InspectOptions(root=root, commit_log_dir=commit_log, check_crc=check_crc)
    return InspectOptions(
        root=root,
        commit_log_dir=commit_log or settings.commit_log_dir,
        check_crc=check_crc,
        delays_ms=settings.delay_levels_ms,
        index_layout=IndexLayout(settings.key_index_slot_count, settings.key_index_entry_count),
    )


# Running


def guarded(work: Callable[[Callable[[str, int, int], None]], T]) -> T:
    """Returns the result, with a progress bar on a terminal; prints one sentence and exits with code 2 when
    the store cannot be read.
    """
    try:
        with progress_bar() as on_progress:
            return work(on_progress)
    except StoreError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def fail(sentence: str) -> NoReturn:
    typer.echo(f"tandemmq: {sentence}", err=True)
    raise typer.Exit(EXIT_UNREADABLE)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        yield show
