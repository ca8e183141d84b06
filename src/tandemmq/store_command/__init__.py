"""`tandemmq store`: checks a store directory that no broker uses, rebuilds its derived files, or shows the
messages that an election cut from it; backs up the store of a running broker, and restores it.

Exit codes: 0 clean or repaired, 1 damaged (repair: refused because of it), 2 the directory cannot be read.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tandemmq.errors import TandemError
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store_command import frame
from tandemmq.store_command.backups import backup, restore

if TYPE_CHECKING:
    from tandemmq.protocol.record import Record
    from tandemmq.store.inspect import Finding, RepairReport, StoreReport
    from tandemmq.store.truncation import KeptTail

FINDINGS_SHOWN = 200
"""The most findings printed; `--json` has all that were kept."""

app = typer.Typer(
    name="store",
    help="Check or repair a store directory; back a running broker up, and restore it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(backup)
app.command()(restore)


@app.command()
def check(
    directory: frame.Root,
    commit_log: frame.CommitLogDir = None,
    config: frame.BrokerFile = None,
    crc: Annotated[bool, typer.Option(help="Compare bodies with their checksums.")] = True,
    as_json: frame.AsJson = False,
) -> None:
    """Read a store without changing anything and report every damaged range."""
    from tandemmq.store.inspect import check_store

    clock = LoopClock()
    begun = clock.monotonic()
    settings = frame.broker_settings(config)
    options = frame.inspect_options(directory, commit_log, settings, check_crc=crc)
    report = frame.guarded(lambda on_progress: check_store(options, on_progress))
    seconds = max(clock.monotonic() - begun, 1e-9)
    if as_json:
        typer.echo(json.dumps(_check_values(report, seconds), indent=2))
    else:
        _print_check(report, directory, seconds)
    raise typer.Exit(0 if report.is_clean else frame.EXIT_DAMAGED)


@app.command()
def repair(
    directory: frame.Root,
    commit_log: frame.CommitLogDir = None,
    config: frame.BrokerFile = None,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Continue although records inside the log are lost.")
    ] = False,
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged",
            help="Copy damaged records to damaged/ and overwrite them in the log, so that brokers skip them.",
        ),
    ] = False,
    index: Annotated[
        bool | None, typer.Option("--index/--no-index", help="Build a key index. [default: if there is one]")
    ] = None,
    as_json: frame.AsJson = False,
) -> None:
    """Rebuild ConsumeQueues, key index and checkpoint from the CommitLog.

    The CommitLog is not touched, unless --skip-damaged is given.
    """
    from tandemmq.store.inspect import RepairOptions, repair_store
    from tandemmq.telemetry.log_lines import show_warnings

    show_warnings()
    settings = frame.broker_settings(config)
    if index is None and settings is not None and not settings.key_index_enable:
        index = False
    options = RepairOptions(
        inspect=frame.inspect_options(directory, commit_log, settings, check_crc=True),
        accepts_damage=accept_damage,
        skips_damaged=skip_damaged,
        has_index=index,
        queue_file_bytes=None if settings is None else settings.consume_queue_file_bytes,
    )
    report = frame.guarded(lambda on_progress: repair_store(options, RealDisk(), on_progress))
    if as_json:
        findings = [finding.as_dict() for finding in report.findings.listed]
        typer.echo(json.dumps({**_numbers(report), "findings": findings}, indent=2))
    else:
        _print_repair(report, directory)
    raise typer.Exit(frame.EXIT_DAMAGED if report.is_refused else 0)


@app.command()
def divergent(
    directory: frame.Root,
    resend: Annotated[
        str,
        typer.Option(
            "--resend",
            help="Send the messages to their topics again, through these name servers.",
            metavar="HOST:PORT",
        ),
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only messages of this topic.")
    ] = None,
    as_json: frame.AsJson = False,
) -> None:
    """Show messages cut from the log when another broker became master; none was acknowledged to its sender.

    Their senders may have resent them: check before you use --resend.
    """
    from tandemmq.store.truncation import list_kept, read_kept

    disk = RealDisk()
    kept = directory / "divergent"
    if not directory.is_dir():
        frame.fail(f"{directory} is not a directory")
    wanted = frozenset(topic or ())

    def read(_on_progress: object) -> list[tuple[KeptTail, list[Record]]]:
        tails = list_kept(kept, disk) if kept.is_dir() else []
        return [
            (tail, [one for one in read_kept(tail, disk) if not wanted or one.topic in wanted])
            for tail in tails
        ]

    found = frame.guarded(read)
    sent = _send_again(resend, [record for _, records in found for record in records]) if resend else None
    if as_json:
        values: dict[str, Any] = {"files": [_tail_values(tail, records) for tail, records in found]}
        if sent is not None:
            values["sent"] = sent
        typer.echo(json.dumps(values, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    for tail, records in found:
        short = "" if tail.size_bytes == tail.end - tail.begin else f", of which {tail.size_bytes:,} are kept"
        console.print(escape(f"{tail.path}: bytes {tail.begin} to {tail.end} of term {tail.epoch}{short}"))
        for record in records:
            console.print(escape(f"  {_record_line(record)}"))
    count = sum(len(records) for _, records in found)
    console.print(f"{count} messages in {len(found)} files" if found else "nothing was cut")
    if sent is not None:
        console.print(f"{sent} messages sent again")


def _record_line(record: Record) -> str:
    when = datetime.fromtimestamp(record.stored_at_ms / 1000).isoformat(" ", "milliseconds")
    place = f"{record.topic}/{record.queue_id}@{record.queue_offset}"
    name = record.unique_key or record.message_id
    return f"{when}  {place}  {name}  {record.properties.get('KEYS', '-')}  {len(record.body)} bytes"


def _tail_values(tail: KeptTail, records: list[Record]) -> dict[str, Any]:
    from tandemmq.protocol.message import ReceivedMessage

    messages = [
        {**ReceivedMessage(record).as_object(), "log_offset": record.log_offset} for record in records
    ]
    return {
        "path": str(tail.path),
        "epoch": tail.epoch,
        "begin": tail.begin,
        "end": tail.end,
        "kept_bytes": tail.size_bytes,
        "messages": messages,
    }


def _send_again(name_servers: str, records: list[Record]) -> int:
    """Sends the records; returns the number sent. Records that the system stores for itself (half messages,
    delays, retries) are left out, and also a body that cannot be decoded: a producer cannot declare a
    compression of its own.
    """
    from tandemmq.client import BlockingProducer, Message
    from tandemmq.protocol.properties import SYSTEM_NAMES, split_keys
    from tandemmq.protocol.topic_names import is_derived, is_system_topic

    sent = left = undecoded = 0
    try:
        with BlockingProducer("TANDEMMQ_DIVERGENT", name_servers) as producer:
            for record in records:
                if is_system_topic(record.topic) or is_derived(record.topic):
                    left += 1
                    continue
                content = record.decode_content()
                if content.fault:
                    undecoded += 1
                    continue
                pairs = record.properties
                users = {name: text for name, text in pairs.items() if name not in SYSTEM_NAMES}
                message = Message(
                    record.topic,
                    bytes(content.data),
                    tags=pairs.get("TAGS", ""),
                    keys=split_keys(pairs.get("KEYS", "")),
                    properties=users,
                )
                producer.send(message)
                sent += 1
    except TandemError as error:
        frame.fail(f"{error}; {sent} messages were already sent")
    if left:
        typer.echo(f"tandemmq: skipped {left} messages of system topics", err=True)
    if undecoded:
        typer.echo(f"tandemmq: skipped {undecoded} messages whose body cannot be decoded", err=True)
    return sent


# Printing


def _numbers(report: StoreReport | RepairReport) -> dict[str, Any]:
    """Returns the report's numbers and lists; findings are rendered separately."""
    values = {name: getattr(report, name) for name in report.__slots__}
    return {name: value for name, value in values.items() if isinstance(value, (int, list))}


def _check_values(report: StoreReport, seconds: float) -> dict[str, Any]:
    findings = report.findings
    return {
        "is_clean": report.is_clean,
        "damage_count": findings.damage_count,
        "note_count": findings.note_count,
        "seconds": round(seconds, 3),
        **_numbers(report),
        "findings": [finding.as_dict() for finding in findings.listed],
    }


def _print_check(report: StoreReport, root: Path, seconds: float) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table(title=escape(f"Store {root}"), title_justify="left")
    table.add_column("part")
    table.add_column("looked at")
    table.add_column("damaged", justify="right")
    table.add_column("notes", justify="right")
    looked_at = {
        "CommitLog": f"{report.log_files} files, {report.record_count:,} records, "
        f"offsets {report.log_begin:,} to {report.log_end:,}",
        "ConsumeQueue": f"{report.queue_count} queues, {report.entry_count:,} entries",
        "key index": f"{report.index_files} files, {report.index_entries:,} entries",
        "checkpoint": "",
        "marks": "",
        "config": "",
    }
    for part, text in looked_at.items():
        found = [finding for finding in report.findings.listed if finding.part.value == part]
        damaged = sum(finding.severity.value == "damage" for finding in found)
        table.add_row(part, text, str(damaged), str(len(found) - damaged))
    _print_findings(console, report.findings.listed, report.findings.unlisted_count)
    console.print(table)
    rate = report.log_bytes / seconds / 1e6
    console.print(f"{report.log_bytes:,} bytes of log in {seconds:.1f} s, {rate:,.0f} MB/s")
    console.print("clean" if report.is_clean else f"damaged: {report.findings.damage_count} ranges")


def _print_findings(console: Console, findings: list[Finding], unlisted_count: int) -> None:
    # Damage first: notes must not push it off the screen.
    ordered = sorted(findings, key=lambda finding: finding.severity.value)
    for finding in ordered[:FINDINGS_SHOWN]:
        console.print(escape(_line(finding)))
    rest = len(ordered[FINDINGS_SHOWN:]) + unlisted_count
    if rest:
        console.print(f"... and {rest} more")


def _line(finding: Finding) -> str:
    """Renders one finding for people: its place, its reason, and its topic and offsets."""
    place = str(finding.path)
    if finding.size_bytes:
        place += f" bytes {finding.offset} to {finding.offset + finding.size_bytes}"
    elif finding.offset:
        place += f" at byte {finding.offset}"
    owner = []
    if finding.topic is not None:
        owner.append(f"topic {finding.topic}, queue {finding.queue_id}")
    if finding.queue_offset is not None:
        owner.append(f"queue offset {finding.queue_offset}")
    if finding.log_offset is not None:
        owner.append(f"log offset {finding.log_offset}")
    facts = f" ({', '.join(owner)})" if owner else ""
    return f"{finding.severity.value}: {place}: {finding.reason}{facts}"


def _print_repair(report: RepairReport, root: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    _print_findings(console, report.findings.listed, report.findings.unlisted_count)
    for warning in report.warnings:
        console.print(escape(f"warning: {warning}"))
    if report.is_refused:
        console.print("refused: the CommitLog is damaged in its middle; nothing was changed")
        console.print("--accept-damage rebuilds the files from the readable records")
        console.print(
            "--skip-damaged overwrites the damaged records, so that a broker accepts messages again"
        )
        return
    for change in report.changes:
        console.print(escape(change))
    read = f"{report.record_count:,} records, {report.queue_count} queues, {report.key_count:,} keys"
    verdict = "repaired" if report.changes else "nothing to change"
    console.print(escape(f"{verdict}: {root} ({read})"))
