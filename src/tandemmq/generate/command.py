"""`tandemmq generate`: prints a Grafana board, or Prometheus' alert rules."""

from __future__ import annotations

import json
from importlib import resources
from typing import Annotated, Final

import typer

from tandemmq.generate.board import render_board
from tandemmq.generate.panels import ROWS, VARIABLES

RUNBOOKS: Final = "https://github.com/tandemmq/tandemmq/blob/main/docs/operations/runbooks.md"
"""The page that `alerts.yml` names."""

app = typer.Typer(
    name="generate",
    help="Print a Grafana board or Prometheus' alert rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def grafana() -> None:
    """Print a Grafana board as JSON, to import or to provision."""
    typer.echo(json.dumps(render_board(ROWS, VARIABLES), indent=2))


@app.command()
def alerts(
    runbooks: Annotated[
        str, typer.Option(help="The address of your copy of the runbooks.", metavar="URL")
    ] = RUNBOOKS,
) -> None:
    """Print Prometheus' alert rules as YAML, for `rule_files`."""
    typer.echo(read_rules(runbooks), nl=False)


def read_rules(runbooks: str) -> str:
    """Returns the alert rules as YAML, with the address of the runbooks' page."""
    rules = (resources.files("tandemmq.generate") / "alerts.yml").read_text(encoding="utf-8")
    return rules.replace(RUNBOOKS, runbooks.replace("'", "''"))  # it is between quotes
