"""The frame of `tandemmq topics`, `groups`, `dlq` and `contexts`: a noun, then the verb.

Without a verb, a noun lists: `tandemmq topics --json` is `tandemmq topics list --json`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tandemmq.admin.options import command, option
from tandemmq.manage.contexts import active_context
from tandemmq.shell import session

Yes = Annotated[bool, option("--yes -y", "Do it without asking.")]
Group = Annotated[str, typer.Argument(help="The consumer group.", metavar="GROUP"), session.GROUP_NAME]


class NounGroup(TyperGroup):
    """The verbs of a noun; `list` is the default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def noun(sentence: str) -> typer.Typer:
    """Returns the application of a noun, to which its verbs are added."""
    return typer.Typer(cls=NounGroup, help=sentence, add_completion=False, pretty_exceptions_enable=False)


verb: Final = partial(command, name_servers=session.NameServers, run_work=session.run_tools)
"""Registers a coroutine function of `Tools` and the command's options as a verb of a noun."""


def confirm(question: str, *, yes: bool) -> None:
    """Asks the user on standard error, naming the servers of the context. Returns if the answer, given or in
    advance, is yes; else ends the command with code 1.
    """
    if yes:
        return
    context = active_context()
    if context is not None:
        question = f"[{context.name_servers}] {question}"
    with _interruptible():
        try:
            if typer.confirm(question, err=True):
                return
            session.note("nothing is changed")
        except typer.Abort:
            typer.echo(err=True)  # the question had no answer, and no line end
            session.note("nothing is changed; --yes answers in advance")
    raise typer.Exit(1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl-C end a question, which asyncio's handler does not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
