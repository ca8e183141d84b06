"""Documents name commands, settings and events that the code has."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from tandemmq import cli
from tandemmq.broker.options import AccessOptions, BrokerOptions, ElectionOptions
from tandemmq.config.names import (
    ALIASES,
    BROKER_INERT,
    BROKER_KEYS,
    CONTROLLER_KEYS,
    NAMESERVER_INERT,
    NAMESERVER_KEYS,
    PROXY_KEYS,
    REFUSED,
)
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.store.options import StoreOptions
from tandemmq.telemetry import events

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
]
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in DOCUMENTS}
PAGES = [name for name in TEXTS if name.startswith("docs/operations")]
OPERATIONS = "\n".join(TEXTS[name] for name in PAGES)

SETTINGS = {
    *BROKER_KEYS,
    *NAMESERVER_KEYS,
    *CONTROLLER_KEYS,
    *PROXY_KEYS,
    *REFUSED,
    *ALIASES,
    *BROKER_INERT,
    *NAMESERVER_INERT,
}
OPTIONS = {
    "broker": BrokerOptions,
    "store": StoreOptions,
    "replication": ReplicationOptions,
    "election": ElectionOptions,
    "access": AccessOptions,
}

CODE_BLOCK = re.compile(r"^```.*?^```$|^ {4}\S.*?$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|`|=\S* |\$ )(tandemmq(?: [^`\n#&]+)?)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)\s#]*)#([^)\s]+)\)")
KEY_TABLE = re.compile(r"^\| key \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Returns the anchor of a heading, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_headings_resolve(document: Path) -> None:
    missing = []
    for target, anchor in LINK.findall(document.read_text(encoding="utf-8")):
        path = document.parent / target if target else document
        if anchor not in anchors(path.read_text(encoding="utf-8")):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def commands() -> Iterator[pytest.ParameterSet]:
    for name, text in TEXTS.items():
        for number, line in enumerate(text.splitlines(), 1):
            for match in COMMAND.finditer(line.strip()):
                yield pytest.param(match[1], id=f"{name}:{number}")


@functools.cache
def command_tree(name: str | None) -> Any:
    """Returns the commands of `cli.app`, or those `cli` loads by name. Made once each."""
    return cli._load_other(name) if name else typer.main.get_command(cli.app)


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words behind it."""
    other = words.pop(0) if words and words[0] in cli._OTHERS else None
    command = command_tree(other)
    while words and isinstance(command, TyperGroup) and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    return command, words


@pytest.mark.parametrize("line", list(commands()))
def test_commands_and_their_options_exist(line: str) -> None:
    command, rest = resolve(shlex.split(line)[1:])
    if isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        assert rest[0].isupper(), f"{command.name} has no command {rest[0]}"  # COMMAND stands for any
        return
    flags = [word.strip("[]") for word in rest if word.strip("[]").startswith("-")]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert [flag for flag in flags if flag not in {*known, "--help"}] == []


def test_settings_with_a_value_exist() -> None:
    """`key=value` in running text, and in properties files."""
    unknown = []
    for name in (
        "README.md",
        "docs/client.md",
        *sorted(name for name in TEXTS if name.startswith("docs/client/")),
        "docs/durability.md",
        *PAGES,
        "docs/security.md",
    ):
        text = TEXTS[name]
        named = re.findall(r"`([a-z]+[A-Z]\w*)=[^`\n(]*`", text)
        for block in re.findall(r"^```properties\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            named += re.findall(r"^(\w+)=", block, re.MULTILINE)
        unknown += [f"{name}: {key}" for key in named if key not in SETTINGS]
    assert unknown == ["docs/operations/features.md: clientRebalance"]  # of RocketMQ's clients


def key_rows() -> Iterator[tuple[str, str]]:
    """Key and default of every row of the tables in docs/operations, one key at a time."""
    for table in KEY_TABLE.findall(OPERATIONS):
        for row in table.splitlines():
            cells = [cell.strip() for cell in row.split("|")[1:3]]
            keys, defaults = re.findall(r"`(\w+)`", cells[0]), [cells[1].replace("`", "")]
            yield from zip(keys, defaults if len(keys) == 1 else defaults[0].split(", "), strict=True)


def default_of(key: str) -> str:
    """The code's values, as a document writes them."""
    part, _, field_name = BROKER_KEYS[key].fields[0].partition(".")
    value = next(field.default for field in fields(OPTIONS[part]) if field.name == field_name)
    if isinstance(value, Enum):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_defaults_in_tables_are_those_of_the_code() -> None:
    in_words = {
        "controllerSharedSecret",
        "haAllowedSlaves",
        "haMasterRemotingAddress",
        "haSharedSecret",
        "memoryBytes",
    }
    rows = [(key, default) for key, default in key_rows() if key not in in_words]
    assert len(rows) > 30
    assert [(key, default, default_of(key)) for key, default in rows if default != default_of(key)] == []


def test_events_exist() -> None:
    known = {value for name, value in vars(events).items() if name.isupper()}
    areas = {event.partition(".")[0] for event in known}
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", OPERATIONS + TEXTS["docs/security.md"])
    unknown = {name for name in named if name not in known and name.partition(".")[0] in areas}
    assert unknown == {"broker.conf", "tls.enable", "tls.properties"}  # files and a setting


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {target for text in TEXTS.values() for target in re.findall(r"(?:`| {4})make ([a-z-]+)", text)}
    assert len(named) > 8
    assert named - targets == set()
