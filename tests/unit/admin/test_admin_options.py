"""Times and tables of `tandemmq admin`, without brokers."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tandemmq.admin.options import option, parse_time
from tandemmq.admin.render import CommandAnswer, Table, exit_on_broken_pipe, print_answer, render_time
from tandemmq.cli import app

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [("now", NOW_MS), ("-1", -1), ("0", 0), ("1690000000000", 1_690_000_000_000)],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text, NOW_MS) == expected


def test_time_as_mqadmin_writes_it_is_local() -> None:
    expected = datetime(2024, 5, 6, 7, 8, 9, 120_000).timestamp() * 1000
    assert parse_time("2024-05-06#07:08:09:120", NOW_MS) == int(expected)


def test_an_option_has_its_names_its_help_and_its_settings() -> None:
    one = typer.Typer()

    @one.command()
    def show(count: Annotated[int, option("-c --count", "How many.", min=1)] = 2) -> None:
        typer.echo(count)

    assert CliRunner().invoke(one, ["-c", "3"]).output == "3\n"
    assert CliRunner().invoke(one, ["--count", "0"]).exit_code == 2
    assert "How many." in CliRunner().invoke(one, ["--help"]).output


@pytest.mark.parametrize("text", ["", "soon", "-2", "2024-05-06", "1e3"])
def test_other_texts_are_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_time(text, NOW_MS)


def test_json_has_rows_by_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(CommandAnswer([Table("t", ("a", "b"), [(1, None)])], ["a note"]), as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"t": [{"a": 1, "b": None}]}
    assert err == ""


@pytest.mark.parametrize("extra", [0, 8])
def test_people_see_every_value(capsys: pytest.CaptureFixture[str], extra: int) -> None:
    columns = ("name", "made_at", "ok", *(f"c{number}" for number in range(extra)))
    row = ("[bold]x", 1_000, True, *(f"v{number}" for number in range(extra)))
    print_answer(CommandAnswer([Table("some_things", columns, [row])], ["a note"]), as_json=False)
    out, err = capsys.readouterr()
    for text in ("some things", "[bold]x", "1970-01-01 00:00:01.000", "yes", *row[3:]):
        assert text in out
    assert err == "a note\n"


COLUMNS = ("name", "role", "address", "process", "state", "uptime_seconds", "restarts", "lag_bytes")
ROWS = [("name server", "name server", "127.0.0.1:13948", 10_602, "ready", 25, 0, None)]


@pytest.mark.parametrize("width", [200, 100, 80, 40])
def test_a_terminal_does_not_break_short_texts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """If the row does not fit in any layout, its fields become lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    print_answer(CommandAnswer([Table("processes", COLUMNS, ROWS)]), as_json=False)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= width
    for text in ("name server", "127.0.0.1:13948", "10602", "ready", "restarts"):
        assert text in out
    assert ("field" in out) == (width == 40)


def test_a_long_text_of_a_row_is_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    print_answer(CommandAnswer([Table("t", ("name", "note"), [("a", "why " * 30)])]), as_json=False)
    assert capsys.readouterr().out.count("why") == 30


@pytest.mark.parametrize("as_json", [True, False])
def test_a_reader_that_has_gone_is_a_good_end(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    answer = CommandAnswer([Table("t", ("a",), [("x" * 100,)] * 1_000)])
    with open(writer, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        with pytest.raises(typer.Exit) as ended, exit_on_broken_pipe():
            print_answer(answer, as_json=as_json)
    assert ended.value.exit_code == 0


def test_no_time_is_a_dash() -> None:
    assert render_time(0) == render_time(-1) == "-"


def test_an_address_without_a_port_is_a_mistake_of_use() -> None:
    for name in ("getBrokerConfig", "acceptLog", "producer"):
        done = CliRunner().invoke(app, ["admin", name, "-b", "localhost"])
        assert done.exit_code == 2, done.output
        assert "expected host:port" in done.output
