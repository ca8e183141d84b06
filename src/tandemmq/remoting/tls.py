"""TLS between a transport and a protocol: bytes of the wire below, bytes of the protocol above.

Strategy:   an `ssl.SSLObject` over buffers in memory, so that a connection whose first byte was looked at
            already can still become one with TLS, and so that it works over any network of `runtime`.
Invariants: the protocol above hears `connection_made` when the handshake is over, and never when it fails;
            a handshake ends within `handshake_s`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from tandemmq.runtime.ports import Buffer, Clock, TimerHandle

HANDSHAKE_S: Final = 10.0
READ_BYTES: Final = 262_144
WRITE_BYTES: Final = 262_144
"""Encrypted in one go; larger pieces are cut, so that their encrypted form is not in memory as a whole."""

OnOutcome = Callable[[OSError | None], None]


class TlsConnection(asyncio.Protocol):
    """The protocol that the wire sees. `upper` is the one above, made once the handshake is over.

    `on_outcome` is called once: with None then, or with the reason why there will be no connection.
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
        """With `server_name` this is the client's side."""
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

    # What the wire calls

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

    # What the transport above calls

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
        except ssl.SSLError as error:
            self._break(error)

    def close(self) -> None:
        """Tells the peer that this is the end, sends what is left and closes."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            pass  # it also waits for the peer's farewell, which we do not
        self._send_encrypted()
        self.wire.close()

    def abort(self) -> None:
        """Ends it at once, without telling the outcome of a handshake that still runs."""
        self._is_over = True
        self._stop_timer()
        if self._wire is not None:
            self._wire.abort()

    # Inside

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
            self._send_encrypted()  # the alert that tells the peer why
            if self.upper is None:
                self._fail(error)
            else:
                self._break(error)

    def _begin(self) -> None:
        self._stop_timer()
        self.upper = self._make_upper()
        self.upper.connection_made(TlsTransport(self))
        self._on_outcome(None)

    def _read(self) -> None:
        """Hands up everything that can be decrypted, then raises SSLWantReadError or ends with the peer."""
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

    def _break(self, error: ssl.SSLError) -> None:
        """The stream can no longer be trusted; the protocol above hears of it by `connection_lost`."""
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
    """What the protocol above writes to. Buffers and their limits are those of the wire."""

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
