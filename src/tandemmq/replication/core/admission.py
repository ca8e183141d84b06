"""Who may be a slave: a list of networks, and a secret that both ends prove to know. Pure.

RocketMQ has neither, so both are off by default; with a secret only peers of ours can take part.

The handshake comes before the classic stream and costs one and a half round trips:
    master -> slave   GREETING (12 bytes), master's nonce (16)
    slave  -> master  ANSWER (8 bytes), slave's nonce (16), HMAC-SHA256 over "slave", both nonces (32)
    master -> slave   HMAC-SHA256 over "master", both nonces (32)
The master speaks first, so a slave with a secret sends nothing that a RocketMQ master could take for a
report. To a slave without the secret the greeting is the head of a frame that never ends, at a negative
offset. It proves who opened the connection; what follows is neither encrypted nor signed, so it is no
protection from somebody who can change bytes on the way.
Invariants: nothing of the stream is read before the proof; a nonce is used once; proofs are compared in
            constant time.
Source:     spec decisions 4; our own.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from tandemmq.errors import ConfigError, RemoteProtocolError

NONCE_BYTES: Final = 16
_PROOF_BYTES: Final = 32
GREETING_HEAD: Final = b"\xffTMQ-HA1\x7f\xff\xff\xff"
_ANSWER_HEAD: Final = b"\xffTMQ-HA2"
_GREETING_BYTES: Final = len(GREETING_HEAD) + NONCE_BYTES
_ANSWER_BYTES: Final = len(_ANSWER_HEAD) + NONCE_BYTES + _PROOF_BYTES
GREETING_OFFSET: Final = int.from_bytes(GREETING_HEAD[:8], "big", signed=True)
"""What the greeting looks like to a slave that expects a frame."""


class AllowedHosts:
    """Networks in CIDR form or single addresses; empty: everybody."""

    __slots__ = ("_networks",)

    def __init__(self, networks: Sequence[str]) -> None:
        """Raises ConfigError naming the entry that is no network."""
        self._networks = []
        for text in networks:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError:
                raise ConfigError(f"haAllowedSlaves: {text!r} is no address and no network") from None

    def allows(self, host: str) -> bool:
        """Whether a peer with this numeric address may connect; one mapped into IPv6 counts as IPv4."""
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
    """The master's side of one connection."""

    __slots__ = ("_buffer", "_nonce", "_secret")

    def __init__(self, secret: str, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._nonce = nonce
        self._buffer = b""

    def greeting(self) -> bytes:
        return GREETING_HEAD + self._nonce

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """What to send and the first bytes of the stream behind the answer; None: wait for more.

        Raises:  RemoteProtocolError when the peer does not know the secret.
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
    """The slave's side of one connection."""

    __slots__ = ("_buffer", "_expected", "_nonce", "_secret")

    def __init__(self, secret: str, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._nonce = nonce
        self._buffer = b""
        self._expected: bytes | None = None
        """The proof that the master owes; None before its greeting."""

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """What to send, and once the master is proven the first bytes of the stream (else None).

        Raises:  RemoteProtocolError when the master does not know the secret.
        """
        self._buffer += data
        answer = b""
        if self._expected is None:
            head = self._buffer[: len(GREETING_HEAD)]
            if head != GREETING_HEAD[: len(head)]:
                raise RemoteProtocolError("the master asks for no shared secret, ours demands one")
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
    return hmac.digest(secret.encode(), side + master_nonce + slave_nonce, "sha256")
