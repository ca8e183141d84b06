"""Answers as tables for people or as JSON for programs.

The JSON of an answer is one object: the name of each table -> its rows, each an object by column.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

COLUMNS_MAX: Final = 8
"""The most columns of a table. A table with more is shown as one block per row, because a terminal would
break every cell.
"""

PIPE_WIDTH: Final = 200
"""The width of the output, in characters, if standard output is not a terminal."""
FOLDED_CHARS: Final = 24
"""The longest text that always stays on one line; longer texts may be folded."""

Row = tuple[Any, ...]


@dataclass(slots=True)
class Table:
    """A table; `name` is its title for people and its key in the JSON output. A column whose name ends in
    `_at` holds milliseconds since 1970.
    """

    name: str
    columns: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)


def rows_of(values: Iterable[object], attributes: str, *before: object) -> list[Row]:
    """Returns a row for each value: `before`, and its attributes, two or more names separated by blanks."""
    read = attrgetter(*attributes.split())
    return [(*before, *read(one)) for one in values]


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer of a command; `notes` are sentences for people, `exit_code` is the exit code of the
    process.
    """

    tables: Sequence[Table]
    notes: Sequence[str] = ()
    exit_code: int = 0

    @classmethod
    def of_rows(cls, name: str, columns: str, rows: Iterable[Row], *, otherwise: str = "") -> CommandAnswer:
        """Returns one table, whose columns are the words of `columns`. If it has no row and `otherwise` is
        given, the answer has that note and exit code 1.
        """
        table = Table(name, tuple(columns.split()), list(rows))
        return cls([table], [otherwise], exit_code=1) if otherwise and not table.rows else cls([table])


def print_answer(answer: CommandAnswer, *, as_json: bool, is_repeated: bool = False) -> None:
    """Prints the tables to standard output and the notes to standard error. For a repeated answer, JSON is
    one line, and a terminal shows only the newest answer.
    """
    if as_json:
        values = {
            table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            for table in answer.tables
        }
        # One line per answer, for programs that read line by line.
        typer.echo(json.dumps(values, indent=None if is_repeated else 2))
        return
    console = _open_console()
    if is_repeated and console.is_terminal:
        console.clear()
    _print_tables(answer, console)


def print_preview(answer: CommandAnswer) -> None:
    """Prints tables and notes to standard error, for the user who is about to be asked."""
    _print_tables(answer, _open_console(is_error=True))


def _print_tables(answer: CommandAnswer, console: Console) -> None:
    for table in answer.tables:
        if len(table.columns) <= COLUMNS_MAX and _width(table, 0) <= console.width:
            console.print(_as_rich(table, console.width))
        else:
            for row in table.rows:
                console.print(_as_rich(_transpose(table, row), console.width))
    for note in answer.notes:
        typer.echo(note, err=True)


@contextmanager
def exit_on_broken_pipe() -> Iterator[None]:
    """Turns the BrokenPipeError of a closed standard output (`| head -1`) into a successful end: typer.Exit
    with code 0.
    """
    try:
        yield
    except BrokenPipeError:
        # Python still buffers data, and its flush at exit must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def write_json(path: Path, value: object) -> Path:
    """Writes the value as JSON to the file and returns its path; creates the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
    return path


def render_time(time_ms: int) -> str:
    """Renders a time in UTC for people; `-` for no time."""
    if time_ms <= 0:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds")


def _open_console(*, is_error: bool = False) -> Console:
    """Opens standard output, or standard error, as a console. A write after the reader has closed raises
    BrokenPipeError, as without a console.
    """
    from rich.console import Console  # commands without a table start faster

    class Pipe(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    console = Pipe(stderr=is_error)
    return console if console.is_terminal else Pipe(width=PIPE_WIDTH, stderr=is_error)


def _transpose(table: Table, row: Row) -> Table:
    """Returns a table with a line per column, for one row of a wide table."""
    pairs = zip(table.columns, row, strict=True)
    rows: list[Row] = [(column.replace("_", " "), _cell(column, value)) for column, value in pairs]
    return Table(table.name, ("field", "value"), rows)


def _width(table: Table, padding: int, header_end: str = "\n") -> int:
    """Returns the terminal columns of the table with `padding` blanks on both sides of each cell."""
    widths = [
        max(
            *map(len, column.replace("_", header_end).splitlines()),
            *(min(len(_cell(column, row[number])), FOLDED_CHARS) for row in table.rows),
            0,
        )
        for number, column in enumerate(table.columns)
    ]
    return sum(widths) + len(widths) * (2 * padding + 1) + 1


def _as_rich(table: Table, width: int) -> RichTable:
    """Renders the table within the width. If the table is too wide, the words of its headers are put below
    each other, then the padding is dropped; only then are texts folded.
    """
    from rich.markup import escape
    from rich.table import Table as RichTable

    header_end = " " if _width(table, 1, " ") <= width else "\n"
    padding = 1 if _width(table, 1, header_end) <= width else 0
    shown = RichTable(title=table.name.replace("_", " "), title_justify="left", padding=(0, padding))
    for number, column in enumerate(table.columns):
        is_number = any(
            isinstance(row[number], int | float) and not isinstance(row[number], bool) for row in table.rows
        )
        is_right = is_number and not column.endswith("_at")
        longest = max((len(_cell(column, row[number])) for row in table.rows), default=0)
        shown.add_column(
            column.replace("_", header_end),
            justify="right" if is_right else "left",
            overflow="fold",
            no_wrap=longest <= FOLDED_CHARS,
        )
    for row in table.rows:
        shown.add_row(
            *(escape(_cell(column, value)) for column, value in zip(table.columns, row, strict=True))
        )
    return shown


def _cell(column: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.endswith("_at") and isinstance(value, int):
        return render_time(value)
    if isinstance(value, dict):
        return " ".join(f"{key}={text}" for key, text in value.items())
    return str(value)
