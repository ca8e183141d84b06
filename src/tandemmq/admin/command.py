"""`tandemmq admin`: the operators' commands, with mqadmin's names and flags.

Exit codes: 0 done, 1 rejected, not found or a fault that the command reports, 2 a mistake in the command
line.
"""

from __future__ import annotations

import typer

from tandemmq.admin import access, brokers, controllers, groups, messages, topics

app = typer.Typer(
    name="admin",
    help="Inspect and change brokers, topics, groups and messages, with mqadmin's commands and flags.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _title, _chapter in (
    ("Brokers", brokers),
    ("Topics", topics),
    ("Groups", groups),
    ("Messages", messages),
    ("Access", access),
    ("Controllers", controllers),
):
    for _command in _chapter.app.registered_commands:
        _command.rich_help_panel = _title
    app.add_typer(_chapter.app)
