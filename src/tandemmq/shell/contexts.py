"""`tandemmq contexts`: the user's clusters by name; and `--context`, which every command with `-n` has."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from typer.core import TyperOption

from tandemmq.admin.options import grouped, is_given, option
from tandemmq.admin.render import CommandAnswer, print_answer
from tandemmq.client.options import parse_name_servers
from tandemmq.errors import ConfigError
from tandemmq.manage import contexts
from tandemmq.shell import session
from tandemmq.shell.nouns import Yes, confirm, noun

app = noun("Keep the addresses, credentials and TLS of several clusters.")

VARIABLE: Final = "TANDEMMQ_CONTEXT"
Name = Annotated[str, typer.Argument(help="The context.", metavar="NAME")]


@dataclass(frozen=True, slots=True)
class ContextTls:
    """The options of a context for TLS; None keeps the value."""

    tls: Annotated[bool | None, option("--tls/--no-tls", "Connect with TLS, or without.")] = None
    tls_ca: Annotated[
        Path | None, option("--tls-ca", "The certificates to trust, as PEM.", show_default="the system's")
    ] = None
    tls_cert: Annotated[Path | None, option("--tls-cert", "A client certificate, as PEM.")] = None
    tls_key: Annotated[Path | None, option("--tls-key", "The key of --tls-cert, as PEM.")] = None

    def changes(self) -> dict[str, Any]:
        """Returns the given fields of a context. Raises typer.BadParameter for a missing file."""
        if self.tls is False:
            return {"has_tls": False, "tls_ca": "", "tls_cert": "", "tls_key": ""}
        files = {"tls_ca": self.tls_ca, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        found = {name: str(path.absolute()) for name, path in files.items() if path is not None}
        for path in found.values():
            if not Path(path).is_file():
                raise typer.BadParameter(f"{path}: there is no such file")
        return found | ({"has_tls": True} if found or self.tls else {})


@app.command("list")
def list_contexts(as_json: session.AsJson = False) -> None:
    """List the contexts; secrets are not shown."""
    with session.explained_errors():
        file = contexts.read_contexts()
    rows = [
        (name, name == file.current, one.name_servers, one.access_key or None, one.has_tls)
        for name, one in sorted(file.contexts.items())
    ]
    answer = CommandAnswer.of_rows("contexts", "context current name_servers access_key tls", rows)
    notes = (
        []
        if rows
        else [f"no context yet: `tandemmq contexts set NAME -n HOST:PORT` ({contexts.contexts_path()})"]
    )
    print_answer(CommandAnswer(answer.tables, notes), as_json=as_json)


@app.command("set")
@grouped
def set_context(
    name: Name,
    name_servers: Annotated[str, option("-n --namesrv HOST:PORT", "Name servers, separated by ;")] = "",
    access_key: Annotated[
        str | None,
        option(
            "--access-key KEY",
            "Sign requests; the secret key is asked for, or read from standard input. '': no longer.",
        ),
    ] = None,
    tls: ContextTls = ContextTls(),  # frozen
) -> None:
    """Create a context, or change what is given."""
    if not contexts.NAME.fullmatch(name):
        raise typer.BadParameter(f"{name!r}: expected 1 to 64 letters, digits, '.', '_' or '-'")
    changes = tls.changes()
    if name_servers:
        changes["name_servers"] = _servers(name_servers)
    with session.explained_errors():
        file = contexts.read_contexts()
        held = file.contexts.get(name)
        if held is None and not name_servers:
            raise typer.BadParameter("a new context needs its name servers: -n HOST:PORT")
        if access_key is not None:
            changes |= {"access_key": access_key, "secret_key": _read_secret() if access_key else ""}
        new = msgspec.structs.replace(held or contexts.ClusterContext(""), **changes)
        if new.tls_key and not new.tls_cert:
            raise typer.BadParameter("--tls-key needs --tls-cert")
        contexts.write_contexts(file.changed(contexts=file.contexts | {name: new}))
    session.note(f"context {name} is saved; use it with --context {name} or `tandemmq contexts use {name}`")


@app.command("use")
def use(
    name: Annotated[
        str | None, typer.Argument(help="The context; none of them if missing.", metavar="NAME")
    ] = None,
) -> None:
    """Make a context the default of all commands; without a name, none."""
    with session.explained_errors():
        file = contexts.read_contexts()
        if name is not None:
            file.find(name)
        contexts.write_contexts(file.changed(current=name or ""))
    session.note(f"commands use context {name}" if name else "commands use no context")


@app.command("delete")
def delete_context(name: Name, yes: Yes = False) -> None:
    """Delete a context with its credentials; asks before."""
    with session.explained_errors():
        file = contexts.read_contexts()
        confirm(f"Delete context {name} of {file.find(name).name_servers}?", yes=yes)
        rest = {one: held for one, held in file.contexts.items() if one != name}
        contexts.write_contexts(
            file.changed(contexts=rest, current="" if file.current == name else file.current)
        )


def _read_secret() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Secret key", hide_input=True, err=True))
    secret = sys.stdin.readline().strip()
    if not secret:
        raise ConfigError("no secret key on standard input: give it as the first line")
    return secret


def _servers(text: str) -> str:
    """Returns the name servers with their ports. Raises typer.BadParameter."""
    try:
        return ";".join(parse_name_servers(text))
    except ConfigError as error:
        raise typer.BadParameter(f"-n {text}: {error}") from None


# The option of all commands


def add_context(command: Any) -> None:
    """Adds --context to a command with -n, and to all such commands of a group."""
    for one in getattr(command, "commands", {}).values():
        add_context(one)
    if all(one.name != "namesrv" for one in command.params):
        return
    option = TyperOption(
        param_decls=["--context"],
        help="A cluster of `tandemmq contexts`, with its credentials and TLS.",
        envvar=VARIABLE,
        show_default="the one in use",
        show_envvar=True,
        metavar="NAME",
    )
    command.params.append(option)
    inner = command.invoke

    def invoke(ctx: Any) -> Any:
        context = _choose(ctx)
        if context is not None:
            ctx.params["namesrv"] = context.name_servers
        with contexts.use_context(context):
            return inner(ctx)

    command.invoke = invoke


def _choose(ctx: Any) -> contexts.ClusterContext | None:
    """Returns the context of a command: the named one, or the one in use unless the command line or the
    environment names the servers.
    """
    name = ctx.params.pop("context") or ""
    is_named = is_given(ctx, "context")
    if is_given(ctx, "namesrv") and ctx.params["namesrv"]:
        if is_named:
            raise typer.BadParameter("-n and --context exclude each other: give only one", ctx=ctx)
        _servers(ctx.params["namesrv"])
        return None
    if not name:
        if any(os.environ.get(one) for one in session.VARIABLES):
            return None
        name = contexts.read_contexts().current
    return contexts.read_contexts().find(name) if name else None
