"""TLS of connections. `TlsConnection` sits between a transport and a protocol; contexts are built from
certificate files. The `TlsAcceptor` of a server holds the current certificates and determines which
connections speak TLS.

Strategy:   an `ssl.SSLObject` over memory buffers, so that a connection can switch to TLS after its first
            byte was read, and so that it works over any network of `runtime`. A ClientHello begins with the
            byte 0x16, a frame with 0x00 (it is shorter than 16 MiB), so the first byte decides (spec remoting
            5). A plain connection then drops this layer, which costs it nothing from then on.
Invariants: the protocol above gets `connection_made` when the handshake is complete, and never if it fails. A
            handshake ends within `handshake_s`. TLS 1.2 and later; no renegotiation, which only costs the
            server.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from tandemmq.errors import ConfigError
from tandemmq.remoting.options import ClientAuth, TlsClientOptions, TlsMode, TlsOptions
from tandemmq.runtime.ports import Address, Clock, Disk, TimerHandle
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
READ_BYTES: Final = 262_144
WRITE_BYTES: Final = 262_144
"""The bytes encrypted at once; larger pieces are split, so that their encrypted form is never in memory as a
whole.
"""
CLIENT_HELLO: Final = 0x16
WATCH_S: Final = 10.0
FIRST_BYTE_S: Final = 120.0
"""The time in seconds after which a connection without any byte is closed, like any idle one (spec remoting
5).
"""
OnOutcome = Callable[[OSError | None], None]


class TlsConnection(asyncio.Protocol):
    """The protocol of the wire's transport. `upper` is the protocol above, created once the handshake is
    complete.

    `on_outcome` is called once: with None then, or with the error if the connection fails.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make_upper: Callable[[], asyncio.Protocol],
        *,
        clock: Clock,
        on_outcome: OnOutcome,
        server_name: str | None = None,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """Creates the connection; `server_name` makes it the client's side."""
        self.upper: asyncio.Protocol | None = None
        self._make_upper = make_upper
        self._on_outcome = on_outcome
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_client = server_name is not None
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not self._is_client, server_hostname=server_name
        )
        self._wire: asyncio.Transport | None = None
        self._is_over = False
        self._timer: TimerHandle | None = clock.call_later(
            handshake_s, self._fail, TimeoutError(f"no TLS handshake within {handshake_s:g} s")
        )

    # The methods called by the wire.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        if self._is_client:
            self._advance()

    def data_received(self, data: bytes) -> None:
        if not self._is_over:
            self._incoming.write(data)
            self._advance()

    def eof_received(self) -> bool:
        if self.upper is not None and not self._is_over:
            self.upper.eof_received()
        return False

    def pause_writing(self) -> None:
        if self.upper is not None:
            self.upper.pause_writing()

    def resume_writing(self) -> None:
        if self.upper is not None:
            self.upper.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        if self.upper is not None:
            self.upper.connection_lost(exc)
        else:
            self._fail(ConnectionResetError("the peer closed the connection during the TLS handshake"))

    # The methods called by the transport above.

    @property
    def wire(self) -> asyncio.Transport:
        assert self._wire is not None
        return self._wire

    def write(self, data: Buffer) -> None:
        if self._is_over:
            return
        view = memoryview(data)
        try:
            for at in range(0, len(view), WRITE_BYTES):
                self._ssl.write(view[at : at + WRITE_BYTES])
                self._send_encrypted()
        except ssl.SSLError:
            self._break()

    def close(self) -> None:
        """Notifies the peer of the end, sends queued bytes and closes."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            pass  # `unwrap` also waits for the peer's close message, which is not needed
        self._send_encrypted()
        self.wire.close()

    def abort(self) -> None:
        """Ends the connection at once, without reporting the outcome of a running handshake."""
        self._is_over = True
        self._stop_timer()
        if self._wire is not None:
            self._wire.abort()

    # Internals.

    def _advance(self) -> None:
        try:
            if self.upper is None:
                self._ssl.do_handshake()
                self._send_encrypted()
                self._begin()
            self._read()
        except ssl.SSLWantReadError:
            self._send_encrypted()
        except ssl.SSLError as error:
            self._send_encrypted()  # the alert with the reason for the peer
            if self.upper is None:
                self._fail(error)
            else:
                self._break()

    def _begin(self) -> None:
        self._stop_timer()
        self.upper = self._make_upper()
        self.upper.connection_made(TlsTransport(self))
        self._on_outcome(None)

    def _read(self) -> None:
        """Passes on everything that can be decrypted, then raises SSLWantReadError or ends with the peer."""
        assert self.upper is not None
        while not self._is_over:
            pieces: list[bytes] = []
            size = 0
            try:
                while size < READ_BYTES:
                    piece = self._ssl.read(READ_BYTES)
                    if not piece:
                        break
                    pieces.append(piece)
                    size += len(piece)
            except ssl.SSLZeroReturnError:
                piece = b""
            except ssl.SSLWantReadError:
                if pieces:
                    self.upper.data_received(b"".join(pieces))
                raise
            if pieces:
                self.upper.data_received(b"".join(pieces))
            if not piece and not self._is_over:
                self.upper.eof_received()
                self.close()

    def _send_encrypted(self) -> None:
        if self._outgoing.pending:
            self.wire.write(self._outgoing.read())

    def _break(self) -> None:
        """Ends a stream that can no longer be trusted; the protocol above is notified by
        `connection_lost`.
        """
        self._is_over = True
        self.wire.abort()

    def _fail(self, error: OSError) -> None:
        if self._timer is None:
            return
        self._stop_timer()
        self._is_over = True
        if self._wire is not None:
            self._wire.close() if isinstance(error, ssl.SSLError) else self._wire.abort()
        self._on_outcome(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def ssl_object(self) -> ssl.SSLObject:
        return self._ssl


class TlsTransport(asyncio.Transport):
    """The transport of the protocol above. Buffers and their limits are those of the wire."""

    def __init__(self, connection: TlsConnection) -> None:
        super().__init__()
        self._connection = connection
        self._wire = connection.wire

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._connection.ssl_object
        return self._wire.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._connection.upper is not None
        return self._connection.upper

    def write(self, data: Buffer) -> None:
        self._connection.write(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self._connection.write(data)

    def get_write_buffer_size(self) -> int:
        return self._wire.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._wire.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._wire.set_write_buffer_limits(high=high, low=low)

    def pause_reading(self) -> None:
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    def is_closing(self) -> bool:
        return self._wire.is_closing()

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_chain(context: ssl.SSLContext, cert_path: Path, key_path: Path, password: str) -> None:
    try:
        # Never prompts at the terminal: without a password an encrypted key is an error.
        context.load_cert_chain(cert_path, key_path, password=lambda: password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate {cert_path} with key {key_path} cannot be used: {error}") from None


def _load_trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"trusted certificates {path} cannot be used: {error}") from None


class TlsAcceptor:
    """The TLS of all listeners of one server. Call `load` before the first connection; `watch` follows the
    files.
    """

    def __init__(
        self, options: TlsOptions, *, disk: Disk, clock: Clock, protocols: Sequence[str] = ()
    ) -> None:
        """Creates the acceptor. It selects one of `protocols` (ALPN); peers that offer none of them are
        accepted, too.
        """
        self.options = options
        self.clock = clock
        self._protocols = list(protocols)
        self._disk = disk
        self._seen: list[bytes] = []
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        assert self._context is not None, "the certificates are not loaded"
        return self._context

    def load(self) -> None:
        """Loads the certificates. Raises ConfigError naming a file that cannot be used."""
        if self.options.is_served:
            try:
                self._seen = self._read()
            except OSError as error:
                raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None
            self._context = self._make()

    async def watch(self) -> None:
        """Applies changed certificates to new connections; invalid ones change nothing and are logged."""
        while self.options.is_served:
            await self.clock.sleep(WATCH_S)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        """Checks the files once."""
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
        """Creates the context for accepted connections. Raises ConfigError naming the file that cannot be
        used.
        """
        options = self.options
        assert options.cert_path is not None
        assert options.key_path is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _restrict(context)
        _load_chain(context, options.cert_path, options.key_path, options.key_password)
        if options.client_auth is not ClientAuth.NONE and options.trust_path is not None:
            is_needed = options.client_auth is ClientAuth.REQUIRE
            _load_trust(context, options.trust_path)
            context.verify_mode = ssl.CERT_REQUIRED if is_needed else ssl.CERT_OPTIONAL
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        return context


def make_client_tls(options: TlsClientOptions | None) -> ssl.SSLContext | None:
    """Returns the context for outgoing connections; None without TLS.

    Raises:  ConfigError naming a file that cannot be used.
    """
    if options is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    context.check_hostname = options.verifies_peer and options.checks_name
    if not options.verifies_peer:
        context.verify_mode = ssl.CERT_NONE
    elif options.trust_path is not None:
        _load_trust(context, options.trust_path)
    else:
        context.load_default_certs()
    if options.certificate_path is not None:
        key_path = options.key_path or options.certificate_path
        _load_chain(context, options.certificate_path, key_path, options.key_password)
    return context


class FirstByte(asyncio.Protocol):
    """An accepted connection whose protocol is not known yet; `on_decided` is called once it is."""

    def __init__(
        self,
        door: TlsAcceptor,
        make_channel: Callable[[], asyncio.Protocol],
        *,
        on_made: Callable[[FirstByte], None],
        on_decided: Callable[[FirstByte], None],
        first_byte_s: float = FIRST_BYTE_S,
    ) -> None:
        self.peer: Address = ("", 0)
        self._first_byte_s = first_byte_s
        self._door = door
        self._make_channel = make_channel
        self._on_made = on_made
        self._on_decided = on_decided
        self._wire: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        endpoint = transport.get_extra_info("peername")
        self.peer = (str(endpoint[0]), int(endpoint[1])) if endpoint else ("", 0)
        self._timer = self._door.clock.call_later(self._first_byte_s, self.abort)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        assert self._wire is not None
        if data[0] == CLIENT_HELLO:
            self._stop_timer()
            self._hand_over(self._make_tls(), data)
        elif self._door.options.mode is TlsMode.ENFORCING:
            log.warning(events.TLS_REFUSED, extra={"peer": self.peer, "reason": "it does not speak TLS"})
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
        self._on_decided(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
