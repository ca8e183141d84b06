"""`tandemmq pipeline replay`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tandemmq.errors import ConfigError, TandemError
from tandemmq.spark.command_progress import ProgressKind, make_reporter, split_pair


def replay(
    lake: Annotated[Path, typer.Option(help="The lake that a landing wrote.")],
    namesrv: Annotated[str, typer.Option(help="Name servers: host:port[;host:port].")],
    to: Annotated[str, typer.Option(help="The topic that gets the messages.")],
    from_time: Annotated[
        str, typer.Option(help="Store time of the first message: milliseconds, or 2025-01-31T12:00:00 (UTC).")
    ] = "",
    until_time: Annotated[str, typer.Option(help="Store time of the end, exclusive; as above.")] = "",
    where: Annotated[str, typer.Option(help="A condition in SQL over the lake's columns.")] = "",
    rate: Annotated[
        int | None, typer.Option(help="At most about so many messages per second.", min=1)
    ] = None,
    keep_keys: Annotated[
        bool, typer.Option("--keep-keys", help="Keep the unique keys instead of making new ones.")
    ] = False,
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="Send each message to the queue number that it had.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="What was done; default LAKE/_tandemmq/replay-TOPIC.json.")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master: local[*] or spark://host:port.")] = "local[*]",
    option: Annotated[
        list[str] | None, typer.Option(help="Any other option of the sink, as name=value; repeatable.")
    ] = None,
    progress: Annotated[ProgressKind, typer.Option(help="How progress is told.")] = ProgressKind.TEXT,
) -> None:
    """Send messages of a lake to a topic again, by time and filter, at a bounded rate.

    Started again after a signal, an error or a kill, it goes on with the lake's batch at which it was.
    """
    # Spark and pyarrow are only imported when a pipeline really runs.
    from tandemmq.spark.pipelines.replay import Keys, ReplayOptions, run_replay

    reporter = make_reporter(progress)
    try:
        options = ReplayOptions(
            lake=lake,
            name_servers=namesrv,
            to_topic=to,
            begin_ms=parse_time("--from-time", from_time),
            end_ms=parse_time("--until-time", until_time),
            where=where,
            rate=rate,
            keys=Keys.KEEP if keep_keys else Keys.NEW,
            keep_queues=keep_queues,
            state=state,
            master=master,
            sink=tuple(split_pair(text, "--option") for text in option or []),
        )
        code = run_replay(options, reporter)
    except TandemError as error:
        typer.echo(f"error: {error}", err=True)
        code = 2
    finally:
        reporter.close()
    raise typer.Exit(code)


def parse_time(option: str, text: str) -> int | None:
    """Milliseconds; None for no text. A time without a zone is UTC.

    Raises:  ConfigError for what is neither a number nor a time.
    """
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option}: expected milliseconds or a time such as 2025-01-31T12:00:00, got {text!r}"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
