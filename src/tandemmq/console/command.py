"""`tandemmq console`: the web console of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from tandemmq.admin.options import grouped, option
from tandemmq.console.app import build_app
from tandemmq.console.audit import AuditLog
from tandemmq.console.pages import ALL
from tandemmq.console.sessions import PasswordFile, Sessions, hash_password
from tandemmq.console.view import Action, Frame, Page
from tandemmq.errors import ConfigError
from tandemmq.remoting.options import is_loopback, parse_address, render_address
from tandemmq.runtime.machine import LoopClock
from tandemmq.shell.session import NameServers, Pipelines, find_name_servers
from tandemmq.shell.web_server import listen, serve_app

REQUESTS_AT_ONCE_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options of `console`."""

    listen: Annotated[
        str, option("--listen HOST:PORT", "The address to listen on; port 0 picks a free one.")
    ] = "127.0.0.1:8088"
    read_only: Annotated[bool, option("--read-only", "Show everything, change nothing.")] = False
    audit_log: Annotated[
        Path | None, option("--audit-log FILE", "Append every change to this file, as lines of JSON.")
    ] = None
    password_file: Annotated[
        Path | None,
        option(
            "--password-file FILE",
            "Users of the console itself, as lines of name:viewer:HASH or name:operator:HASH.",
        ),
    ] = None
    hash_password: Annotated[
        bool, option("--hash-password", "Ask for a password, print its hash for that file, and exit.")
    ] = False
    tls_cert: Annotated[Path | None, option("--tls-cert FILE", "The certificate chain for HTTPS.")] = None
    tls_key: Annotated[Path | None, option("--tls-key FILE", "The private key for HTTPS.")] = None
    host_name: Annotated[
        list[str] | None,
        option(
            "--host-name NAME",
            "A name under which browsers reach this console; repeatable. Visitors then must log in.",
        ),
    ] = None
    plain_http: Annotated[
        bool, option("--allow-plain-http", "Serve other machines without TLS; secrets are then readable.")
    ] = False
    pipelines: Pipelines = None
    served: Annotated[
        list[Path] | None,
        option(
            "--served DIR",
            "The directory `out` of a `pipeline serve`, to show and control its topics; repeatable.",
        ),
    ] = None
    visitors: Annotated[bool, option("--allow-visitors", "Serve other machines without log-in.")] = False

    @property
    def is_public(self) -> bool:
        """True if other machines reach the console."""
        return bool(self.host_name) or not is_loopback(parse_address(self.listen)[0])

    def check(self) -> None:
        """Raises ConfigError for options that are invalid or unsafe together."""
        parse_address(self.listen)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key are only useful together")
        for path in filter(None, (self.tls_cert, self.tls_key)):
            if not path.is_file():
                raise ConfigError(f"{path}: there is no such file")
        if self.is_public and self.tls_cert is None and not self.plain_http:
            raise ConfigError(
                f"--listen {self.listen}: other machines can reach this address, so use --tls-cert and"
                " --tls-key; behind a proxy that terminates TLS, --allow-plain-http"
            )


@grouped
def console(namesrv: NameServers = "", options: ConsoleOptions = ConsoleOptions()) -> None:
    """Serve the web console of a cluster until SIGTERM or SIGINT."""
    from tandemmq.telemetry.log_lines import configure_logging

    if options.hash_password:
        typer.echo(hash_password(typer.prompt("Password", hide_input=True, confirmation_prompt=True)))
        return
    options.check()
    configure_logging("WARNING")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(find_name_servers(namesrv), options))


async def _serve(name_servers: str, options: ConsoleOptions) -> None:
    listener = listen(options.listen)
    with contextlib.closing(listener):
        host, port = listener.getsockname()[:2]
        frame = make_frame(name_servers, options)
        app = build_app(
            frame,
            [one for one in ALL if isinstance(one, Action)],
            port=port,
            is_secure=options.tls_cert is not None,
            host_names=_host_names(options),
        )
        scheme = "https" if options.tls_cert is not None else "http"
        await serve_app(
            app,
            listener,
            f"console ready on {scheme}://{render_address((host, port))}",
            name_servers=name_servers,
            requests_max=REQUESTS_AT_ONCE_MAX,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
        )


def make_frame(name_servers: str, options: ConsoleOptions) -> Frame:
    """Returns the console without its server. Raises ConfigError for an invalid file."""
    clock = LoopClock()
    passwords = None if options.password_file is None else PasswordFile(options.password_file)
    is_open = passwords is None and (options.visitors or not options.is_public)
    return Frame(
        Sessions(name_servers, clock, is_open, passwords),
        AuditLog(clock, options.audit_log),
        [one for one in ALL if isinstance(one, Page)],
        options.read_only,
        options.pipelines,
        tuple(options.served or ()),
    )


def _host_names(options: ConsoleOptions) -> list[str]:
    """Returns the names that browsers may use; addresses are always allowed."""
    names = list(options.host_name or ())
    host = parse_address(options.listen)[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        names.append(host)
    return names
