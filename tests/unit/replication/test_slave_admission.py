"""Allowed networks and the shared secret, without sockets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.errors import ConfigError, RemoteProtocolError
from tandemmq.replication.core.frames import (
    BODY_BYTES_MAX,
    GREETING_HEAD,
    NONCE_BYTES,
    AllowedHosts,
    MasterHandshake,
    SlaveHandshake,
    TransferDecoder,
    encode_report,
)
from tandemmq.replication.core.options import ReplicationOptions

SECRET = "correct horse battery"
MASTER_NONCE, SLAVE_NONCE = b"m" * NONCE_BYTES, b"s" * NONCE_BYTES


@pytest.mark.parametrize(
    ("networks", "host", "expected"),
    [
        ((), "203.0.113.9", True),
        (("10.0.0.0/8",), "10.200.3.4", True),
        (("10.0.0.0/8",), "11.0.0.1", False),
        (("10.0.0.1",), "10.0.0.1", True),
        (("10.0.0.1",), "10.0.0.2", False),
        (("10.0.0.7/8",), "10.9.9.9", True),
        (("192.168.0.0/16", "fd00::/8"), "fd12::1", True),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("10.0.0.0/8",), "fd12::1", False),
        (("fe80::/10",), "fe80::1%eth0", True),
        (("10.0.0.0/8",), "no address", False),
    ],
)
def test_networks(networks: tuple[str, ...], host: str, expected: bool) -> None:
    assert AllowedHosts(networks).allows(host) is expected


def test_entry_that_is_no_network_is_named() -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.0/99"):
        ReplicationOptions(allowed_slaves=("10.0.0.0/99",))


def test_secret_is_not_shown() -> None:
    assert SECRET not in repr(ReplicationOptions(shared_secret=SECRET))


def pieces_of(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


@given(sizes=st.lists(st.integers(1, 60), max_size=5), early=st.binary(max_size=20))
def test_both_prove_the_secret_however_the_bytes_are_cut(sizes: list[int], early: bytes) -> None:
    master, slave = MasterHandshake(SECRET, MASTER_NONCE), SlaveHandshake(SECRET, SLAVE_NONCE)
    answer = b""
    for piece in pieces_of(master.greeting(), sizes):
        out, rest = slave.feed(piece)
        answer += out
        assert rest is None
    outcome = None
    for piece in pieces_of(answer, sizes):
        assert outcome is None
        outcome = master.feed(piece)
    assert outcome is not None
    proof, rest_of_slave = outcome
    assert rest_of_slave == b""
    stream = None
    for piece in pieces_of(proof + early, sizes):
        if stream is None:
            out, stream = slave.feed(piece)
            assert out == b""
        else:
            stream += piece
    assert stream == early


def test_report_of_a_stranger_is_refused_at_its_first_byte() -> None:
    with pytest.raises(RemoteProtocolError, match="haSharedSecret"):
        MasterHandshake(SECRET, MASTER_NONCE).feed(encode_report(10**9)[:1])


def test_other_secret_is_refused_by_both() -> None:
    master, slave = MasterHandshake(SECRET, MASTER_NONCE), SlaveHandshake("another secret..", SLAVE_NONCE)
    answer, _ = slave.feed(master.greeting())
    with pytest.raises(RemoteProtocolError, match="another shared secret"):
        master.feed(answer)
    with pytest.raises(RemoteProtocolError, match="another shared secret"):
        slave.feed(bytes(32))


def test_recorded_answer_does_not_fit_another_challenge() -> None:
    first = MasterHandshake(SECRET, MASTER_NONCE)
    answer, _ = SlaveHandshake(SECRET, SLAVE_NONCE).feed(first.greeting())
    with pytest.raises(RemoteProtocolError):
        MasterHandshake(SECRET, b"n" * NONCE_BYTES).feed(answer)


def test_masters_proof_is_not_the_slaves() -> None:
    master, slave = MasterHandshake(SECRET, MASTER_NONCE), SlaveHandshake(SECRET, SLAVE_NONCE)
    answer, _ = slave.feed(master.greeting())
    with pytest.raises(RemoteProtocolError):
        slave.feed(answer[-32:])


def test_slave_with_a_secret_says_nothing_to_a_master_without() -> None:
    slave = SlaveHandshake(SECRET, SLAVE_NONCE)
    with pytest.raises(RemoteProtocolError, match="requires no shared secret"):
        slave.feed(bytes(12))


def test_slave_without_a_secret_stores_nothing_of_the_greeting() -> None:
    greeting = MasterHandshake(SECRET, MASTER_NONCE).greeting()
    with pytest.raises(RemoteProtocolError, match="haSharedSecret"):
        TransferDecoder().feed(greeting)
    # RocketMQ's slaves do not check the sign; a body that never arrives is never stored.
    assert int.from_bytes(GREETING_HEAD[8:12], "big") > BODY_BYTES_MAX
