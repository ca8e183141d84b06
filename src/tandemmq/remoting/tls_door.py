"""TLS: contexts from certificate files, the certificate in force at a server, which connections speak TLS.

TLS 1.2 and later; no renegotiation, which only costs the server. A ClientHello begins with the byte 0x16, a
frame with 0x00 (it is shorter than 16 MiB), so the first byte tells (spec remoting 5). A plain connection
loses the door behind it: from then on it costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from tandemmq.errors import ConfigError
from tandemmq.remoting.options import ClientAuth, TlsClientOptions, TlsMode, TlsOptions
from tandemmq.remoting.tls import TlsConnection
from tandemmq.runtime.ports import Address, Clock, Disk, TimerHandle
from tandemmq.telemetry import events


def make_server_context(
    cert_path: Path,
    key_path: Path,
    *,
    key_password: str = "",
    trust_path: Path | None = None,
    needs_client: bool = False,
) -> ssl.SSLContext:
    """For connections that we accept. With `trust_path` clients are asked for a certificate, with
    `needs_client` they must have one.

    Raises:  ConfigError naming the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    _load_chain(context, cert_path, key_path, key_password)
    if trust_path is not None:
        _load_trust(context, trust_path)
        context.verify_mode = ssl.CERT_REQUIRED if needs_client else ssl.CERT_OPTIONAL
    return context


def make_client_context(
    *,
    trust_path: Path | None = None,
    certificate_path: Path | None = None,
    key_path: Path | None = None,
    key_password: str = "",
    verifies_peer: bool = True,
    checks_name: bool = True,
) -> ssl.SSLContext:
    """For connections that we dial. A peer is verified against `trust_path`, else against the machine's own
    certificates; with `certificate_path` we show one ourselves.

    Raises:  ConfigError naming the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    context.check_hostname = verifies_peer and checks_name
    if not verifies_peer:
        context.verify_mode = ssl.CERT_NONE
    elif trust_path is not None:
        _load_trust(context, trust_path)
    else:
        context.load_default_certs()
    if certificate_path is not None:
        _load_chain(context, certificate_path, key_path or certificate_path, key_password)
    return context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_chain(context: ssl.SSLContext, cert_path: Path, key_path: Path, password: str) -> None:
    try:
        # Never asks at the terminal: without a password an encrypted key is an error.
        context.load_cert_chain(cert_path, key_path, password=lambda: password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate {cert_path} with key {key_path} cannot be used: {error}") from None


def _load_trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"trusted certificates {path} cannot be used: {error}") from None


log = logging.getLogger(__name__)

CLIENT_HELLO: Final = 0x16
WATCH_S: Final = 10.0
FIRST_BYTE_S: Final = 120.0
"""A connection that sends nothing at all is closed then, as any idle one (spec remoting 5)."""


class TlsDoor:
    """TLS of all listeners of one server. `load` before the first connection; `watch` follows the files."""

    def __init__(self, options: TlsOptions, *, disk: Disk, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self._disk = disk
        self._seen: list[bytes] = []
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        assert self._context is not None, "the certificates are not loaded"
        return self._context

    def load(self) -> None:
        """Raises ConfigError naming a file that cannot be used."""
        if self.options.is_served:
            try:
                self._seen = self._read()
            except OSError as error:
                raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
            self._context = self._make()

    async def watch(self) -> None:
        """Takes new certificates over for new connections; bad ones change nothing and are told."""
        while self.options.is_served:
            await self.clock.sleep(WATCH_S)
            await self.look()

    async def look(self) -> None:
        """One look at the files."""
        try:
            contents = await self._disk.offload(self._read)
            if contents == self._seen:
                return
            self._seen = contents
            self._context = self._make()
        except (ConfigError, OSError) as error:
            log.warning(events.TLS_CERTIFICATES_REFUSED, extra={"reason": str(error)})
            return
        log.info(events.TLS_CERTIFICATES_LOADED, extra={"path": str(self.options.cert_path)})

    def _read(self) -> list[bytes]:
        options = self.options
        paths = (options.cert_path, options.key_path, options.trust_path)
        return [self._disk.read_bytes(path) for path in paths if path is not None]

    def _make(self) -> ssl.SSLContext:
        options = self.options
        assert options.cert_path is not None
        assert options.key_path is not None
        return make_server_context(
            options.cert_path,
            options.key_path,
            key_password=options.key_password,
            trust_path=None if options.client_auth is ClientAuth.NONE else options.trust_path,
            needs_client=options.client_auth is ClientAuth.REQUIRE,
        )


def make_client_tls(options: TlsClientOptions | None) -> ssl.SSLContext | None:
    """The context for dialling others; None in plain.

    Raises:  ConfigError naming a file that cannot be used.
    """
    if options is None:
        return None
    return make_client_context(
        trust_path=options.trust_path,
        certificate_path=options.certificate_path,
        key_path=options.key_path,
        key_password=options.key_password,
        verifies_peer=options.verifies_peer,
        checks_name=options.checks_name,
    )


class FirstByte(asyncio.Protocol):
    """An accepted connection that has not said yet what it speaks; `on_gone` is called when it has."""

    def __init__(
        self,
        door: TlsDoor,
        make_channel: Callable[[], asyncio.Protocol],
        *,
        on_made: Callable[[FirstByte], None],
        on_gone: Callable[[FirstByte], None],
    ) -> None:
        self.peer: Address = ("", 0)
        self._door = door
        self._make_channel = make_channel
        self._on_made = on_made
        self._on_gone = on_gone
        self._wire: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        endpoint = transport.get_extra_info("peername")
        self.peer = (str(endpoint[0]), int(endpoint[1])) if endpoint else ("", 0)
        self._timer = self._door.clock.call_later(FIRST_BYTE_S, self.abort)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        assert self._wire is not None
        if data[0] == CLIENT_HELLO:
            self._stop_timer()
            self._hand_over(self._make_tls(), data)
        elif self._door.options.mode is TlsMode.ENFORCING:
            log.warning(events.TLS_REFUSED, extra={"peer": self.peer, "reason": "it speaks no TLS"})
            self.abort()
        else:
            self._finish()
            self._hand_over(self._make_channel(), data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._wire is not None:
            self._wire.abort()

    def _make_tls(self) -> TlsConnection:
        return TlsConnection(
            self._door.context, self._make_channel, clock=self._door.clock, on_outcome=self._on_outcome
        )

    def _hand_over(self, protocol: asyncio.Protocol, data: bytes) -> None:
        assert self._wire is not None
        self._wire.set_protocol(protocol)
        protocol.connection_made(self._wire)
        protocol.data_received(data)

    def _on_outcome(self, error: OSError | None) -> None:
        self._finish()
        if error is not None:
            log.warning(events.TLS_HANDSHAKE_FAILED, extra={"peer": self.peer, "reason": str(error)})

    def _finish(self) -> None:
        self._stop_timer()
        self._on_gone(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
