"""`tandemmq generate`: prints a Grafana board, or Prometheus' alert rules."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer
import yaml

from tandemmq.generate.alerts import render_rules
from tandemmq.generate.board import render_board
from tandemmq.generate.panels import ROWS, VARIABLES

RUNBOOKS: Final = "https://github.com/tandemmq/tandemmq/blob/main/docs/operations/runbooks.md"

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
    typer.echo(
        yaml.safe_dump(render_rules(runbooks), sort_keys=False, width=110, allow_unicode=True), nl=False
    )
