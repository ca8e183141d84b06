"""The classic replication channel: its bytes in both directions, as incremental decoders (spec replication
4.2), and the handshake that admits a slave. Pure.

Slave to master: reports of 8 bytes, each the slave's max offset. Master to slave: a head of 12 bytes (offset
of the first byte, size; size 0 is a heartbeat), then that many raw bytes of the CommitLog. The decoded values
do not depend on how the stream is cut into reads. A decoder holds at most an incomplete head: body bytes are
delivered as they arrive, as views into the fed buffer. After a decoder has raised it must not be used again,
and its connection must be closed.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from struct import Struct
from typing import Final, NamedTuple

from tandemmq.errors import ConfigError, RemoteProtocolError
from tandemmq.units import MIB

REPORT_BYTES = 8
HEAD_BYTES = 12
BODY_BYTES_MAX = 4 * MIB - HEAD_BYTES
"""The most bytes that the receive buffer of a RocketMQ slave can hold."""
TANDEM_BODY_BYTES_MAX = 2 * MIB
"""The longest body of a frame between two TandemMQ brokers; a RocketMQ slave gets `transfer_bytes_max`."""

_REPORT = Struct(">q")
_HEAD = Struct(">qi")


def encode_report(log_offset: int) -> bytes:
    """Encodes the 8-byte report of a slave: the end of its log."""
    return _REPORT.pack(log_offset)


def encode_head(log_offset: int, size_bytes: int) -> bytes:
    """Encodes the 12-byte head of a body of `size_bytes`; 0 makes a heartbeat."""
    assert log_offset >= 0, log_offset
    assert 0 <= size_bytes <= BODY_BYTES_MAX
    return _HEAD.pack(log_offset, size_bytes)


class ReportDecoder:
    """Decodes a slave's bytes into its reports."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, ...]:
        """Returns every report completed by `data`, oldest first.

        Raises:  RemoteProtocolError for a negative report.
        """
        if self._rest:
            data = self._rest + bytes(data)
        count = len(data) // REPORT_BYTES
        used = count * REPORT_BYTES
        self._rest = bytes(data[used:])
        assert len(self._rest) < REPORT_BYTES, len(self._rest)
        if not count:
            return ()
        reports: tuple[int, ...] = Struct(f">{count}q").unpack_from(data)
        if min(reports) < 0:
            raise RemoteProtocolError(f"a slave reported the negative offset {min(reports)}")
        return reports


class TransferHead(NamedTuple):
    """The head of a frame: `size_bytes` bytes of the log from `log_offset` on follow."""

    log_offset: int
    size_bytes: int


class TransferDecoder:
    """Decodes a master's bytes into heads and pieces of bodies, in order."""

    __slots__ = ("_body_left", "_head")

    def __init__(self) -> None:
        self._head = b""
        self._body_left = 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._head)

    @property
    def body_left(self) -> int:
        """The number of bytes that the current body still lacks; 0 if a head comes next."""
        return self._body_left

    def feed(self, data: bytes | bytearray | memoryview) -> list[TransferHead | memoryview]:
        """Returns heads, each followed by the pieces of its body that have arrived.

        Shape:   a piece is a view into `data`, never empty; a body may arrive in any number of pieces.
        Raises:  RemoteProtocolError for an invalid offset or size. The events before it in the same `data`
                 are lost with it; the slave requests them again after reconnecting.
        """
        view = memoryview(data)
        events: list[TransferHead | memoryview] = []
        position, end = 0, len(view)
        while position < end:
            if self._body_left:
                size = min(self._body_left, end - position)
                events.append(view[position : position + size])
                self._body_left -= size
                position += size
                continue
            if not self._head and end - position >= HEAD_BYTES:
                head = TransferHead._make(_HEAD.unpack_from(view, position))
                position += HEAD_BYTES
            else:
                size = min(HEAD_BYTES - len(self._head), end - position)
                self._head += bytes(view[position : position + size])
                position += size
                if len(self._head) < HEAD_BYTES:
                    break
                head = TransferHead._make(_HEAD.unpack(self._head))
                self._head = b""
            _check_head(head)
            events.append(head)
            self._body_left = head.size_bytes
        assert position == end, (position, end)
        assert 0 <= self._body_left <= BODY_BYTES_MAX, self._body_left
        assert not self._head or not self._body_left, "a head comes behind a body"
        return events


def _check_head(head: TransferHead) -> None:
    if head.log_offset == GREETING_OFFSET:
        raise RemoteProtocolError("the master asks for a shared secret (haSharedSecret)")
    if head.log_offset < 0:
        raise RemoteProtocolError(f"the master sent the negative offset {head.log_offset}")
    if not 0 <= head.size_bytes <= BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"a frame of {head.size_bytes} bytes at {head.log_offset}; allowed are 0..{BODY_BYTES_MAX}"
        )


# Admission: slaves are admitted by a list of networks, and by a secret that both ends prove to know.
#
# RocketMQ has neither, so both are off by default. With a secret, only TandemMQ peers can take part.
#
# The handshake precedes the classic stream and costs one and a half round trips:
#     master -> slave   GREETING (12 bytes), master's nonce (16)
#     slave  -> master  ANSWER (8 bytes), slave's nonce (16), HMAC-SHA256 over "slave", both nonces (32)
#     master -> slave   HMAC-SHA256 over "master", both nonces (32)
# The master speaks first, so a slave with a secret sends no bytes that a RocketMQ master could mistake for a
# report. To a slave without the secret, the greeting is the head of an endless frame at a negative offset.
# The handshake proves who opened the connection. The bytes that follow are neither encrypted nor signed, so
# it does not protect against an attacker who can modify traffic.
#
# Invariants: nothing of the stream is read before the proof; a nonce is used once; proofs are compared in
#             constant time.
# Source:     spec decisions 4; our own.

NONCE_BYTES: Final = 16
_PROOF_BYTES: Final = 32
GREETING_HEAD: Final = b"\xffTMQ-HA1\x7f\xff\xff\xff"
_ANSWER_HEAD: Final = b"\xffTMQ-HA2"
_GREETING_BYTES: Final = len(GREETING_HEAD) + NONCE_BYTES
_ANSWER_BYTES: Final = len(_ANSWER_HEAD) + NONCE_BYTES + _PROOF_BYTES
GREETING_OFFSET: Final = int.from_bytes(GREETING_HEAD[:8], "big", signed=True)
"""The log offset that a slave without a secret reads from the greeting."""
assert len(GREETING_HEAD) == HEAD_BYTES, "a slave without a secret reads the greeting as a head"
assert GREETING_OFFSET < 0, "and takes it for no place in a log"
assert len(_ANSWER_HEAD) == REPORT_BYTES, "a master without a secret reads the answer as a report"
assert TANDEM_BODY_BYTES_MAX <= BODY_BYTES_MAX, "a frame of ours is none that a slave refuses"


class AllowedHosts:
    """Allowed networks in CIDR form, or single addresses. An empty list allows every host."""

    __slots__ = ("_networks",)

    def __init__(self, networks: Sequence[str]) -> None:
        """Raises ConfigError with the entry that is not a network."""
        self._networks = []
        for text in networks:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError:
                raise ConfigError(f"haAllowedSlaves: {text!r} is neither an address nor a network") from None

    def allows(self, host: str) -> bool:
        """Returns True if a peer with this numeric address may connect. An IPv4-mapped IPv6 address counts as
        IPv4.
        """
        if not self._networks:
            return True
        try:
            address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        is_v6 = isinstance(address, IPv6Address)
        return any(isinstance(one, IPv6Network) is is_v6 and address in one for one in self._networks)


class MasterHandshake:
    """The master's side of the handshake on one connection."""

    __slots__ = ("_buffer", "_nonce", "_secret")

    def __init__(self, secret: str, nonce: bytes) -> None:
        assert secret, "an empty secret protects nothing"
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._nonce = nonce
        self._buffer = b""

    def greeting(self) -> bytes:
        return GREETING_HEAD + self._nonce

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Returns the bytes to send and the first bytes of the stream after the answer; None if more is
        needed.

        Raises:  RemoteProtocolError if the peer does not know the secret.
        """
        self._buffer += data
        head = self._buffer[: len(_ANSWER_HEAD)]
        if head != _ANSWER_HEAD[: len(head)]:
            raise RemoteProtocolError("the slave does not prove a shared secret (haSharedSecret)")
        if len(self._buffer) < _ANSWER_BYTES:
            return None
        at = len(_ANSWER_HEAD)
        slave_nonce = self._buffer[at : at + NONCE_BYTES]
        proof = self._buffer[at + NONCE_BYTES : _ANSWER_BYTES]
        if not hmac.compare_digest(proof, _prove(self._secret, b"slave", self._nonce, slave_nonce)):
            raise RemoteProtocolError("the slave has another shared secret (haSharedSecret)")
        rest, self._buffer = self._buffer[_ANSWER_BYTES:], b""
        return _prove(self._secret, b"master", self._nonce, slave_nonce), rest


class SlaveHandshake:
    """The slave's side of the handshake on one connection."""

    __slots__ = ("_buffer", "_expected", "_nonce", "_secret")

    def __init__(self, secret: str, nonce: bytes) -> None:
        assert secret, "an empty secret protects nothing"
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._nonce = nonce
        self._buffer = b""
        self._expected: bytes | None = None
        """The proof expected from the master; None before its greeting."""

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Returns the bytes to send, and, once the master has proven itself, the first bytes of the stream
        (else None).

        Raises:  RemoteProtocolError if the master does not know the secret.
        """
        self._buffer += data
        answer = b""
        if self._expected is None:
            head = self._buffer[: len(GREETING_HEAD)]
            if head != GREETING_HEAD[: len(head)]:
                raise RemoteProtocolError("the master requires no shared secret, haSharedSecret is set here")
            if len(self._buffer) < _GREETING_BYTES:
                return b"", None
            master_nonce = self._buffer[len(GREETING_HEAD) : _GREETING_BYTES]
            self._buffer = self._buffer[_GREETING_BYTES:]
            proof = _prove(self._secret, b"slave", master_nonce, self._nonce)
            answer = _ANSWER_HEAD + self._nonce + proof
            self._expected = _prove(self._secret, b"master", master_nonce, self._nonce)
        if len(self._buffer) < _PROOF_BYTES:
            return answer, None
        if not hmac.compare_digest(self._buffer[:_PROOF_BYTES], self._expected):
            raise RemoteProtocolError("the master has another shared secret (haSharedSecret)")
        rest, self._buffer = self._buffer[_PROOF_BYTES:], b""
        return answer, rest


def _prove(secret: str, side: bytes, master_nonce: bytes, slave_nonce: bytes) -> bytes:
    assert len(master_nonce) == len(slave_nonce) == NONCE_BYTES, "each byte is of one part only"
    proof = hmac.digest(secret.encode(), side + master_nonce + slave_nonce, "sha256")
    assert len(proof) == _PROOF_BYTES, len(proof)
    return proof
