"""Tests the blocking connection and its pool, over a socket pair instead of a network."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tandemmq.errors import BrokerUnreachable, RemoteProtocolError, RequestTimeout
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.consume import GetMaxOffsetRequest, GetMaxOffsetResponse
from tandemmq.spark.wire import ConnectionPool, WireConnection


@dataclass
class Peers:
    """The far ends of all connections, oldest first."""

    ends: list[socket.socket] = field(default_factory=list)
    is_refusing: bool = False

    def connect(self, address: tuple[str, int], timeout: float) -> socket.socket:
        if self.is_refusing:
            raise ConnectionRefusedError("refused")
        near, far = socket.socketpair()
        self.ends.append(far)
        return near

    def receive(self, end: int, count: int) -> list[Command]:
        decoder, commands = FrameDecoder(), []
        while len(commands) < count:
            commands += decoder.feed(self.ends[end].recv(65_536))
        return commands


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
    found = Peers()
    monkeypatch.setattr(socket, "create_connection", found.connect)
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *args: None)
    yield found
    for end in found.ends:
        end.close()


def _ask(queue_id: int) -> Command:
    return Command.request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest(topic="T", queue_id=queue_id))


def _answer(request: Command, offset: int) -> bytes:
    return encode_frame(request.reply(0, GetMaxOffsetResponse(offset=offset)))


def _soon() -> float:
    return time.monotonic() + 60


def test_answers_are_paired_whatever_their_order(peers: Peers) -> None:
    connection = WireConnection("host:1")
    numbers = connection.send([_ask(queue_id) for queue_id in range(3)])
    requests = peers.receive(0, 3)
    peers.ends[0].sendall(b"".join(_answer(request, request.opaque * 10) for request in reversed(requests)))
    answers = [connection.receive(number, _soon()) for number in numbers]
    assert [answer.decode(GetMaxOffsetResponse).offset for answer in answers] == [n * 10 for n in numbers]
    assert connection.is_clean
    connection.close()


def test_silence_is_a_timeout(peers: Peers) -> None:
    connection = WireConnection("host:1")
    (number,) = connection.send([_ask(0)])
    with pytest.raises(RequestTimeout, match="host:1"):
        connection.receive(number, time.monotonic() + 0.01)
    assert not connection.is_clean
    connection.close()


def test_a_closed_peer_is_unreachable(peers: Peers) -> None:
    connection = WireConnection("host:1")
    (number,) = connection.send([_ask(0)])
    peers.ends[0].close()
    with pytest.raises(BrokerUnreachable, match=r"closed|broke"):
        connection.receive(number, _soon())
    connection.close()


def test_garbage_is_a_protocol_error(peers: Peers) -> None:
    connection = WireConnection("host:1")
    (number,) = connection.send([_ask(0)])
    peers.ends[0].sendall(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(RemoteProtocolError):
        connection.receive(number, _soon())
    connection.close()


def test_a_refused_connection_is_unreachable(peers: Peers) -> None:
    peers.is_refusing = True
    with pytest.raises(BrokerUnreachable, match="host:1: cannot connect: refused"):
        WireConnection("host:1")


def test_the_pool_keeps_a_clean_connection(peers: Peers) -> None:
    pool = ConnectionPool()
    with pool.borrow("host:1") as first:
        pass
    with pool.borrow("host:1") as second:
        assert second is first
        with pool.borrow("host:1") as third:
            assert third is not first
    pool.close()
    assert len(peers.ends) == 2


def test_the_pool_drops_what_is_not_clean(peers: Peers) -> None:
    pool = ConnectionPool()
    with pool.borrow("host:1") as first:
        first.send([_ask(0)])
    with pool.borrow("host:1") as second:
        assert second is not first
    peers.ends[1].close()
    with pool.borrow("host:1") as third:
        assert third is not second
    with pytest.raises(KeyError), pool.borrow("host:1"):
        raise KeyError
    assert len(peers.ends) == 3
    pool.close()


def test_who_did_not_answer_is_suspect_until_it_answers(peers: Peers) -> None:
    pool = ConnectionPool()
    peers.is_refusing = True
    with pytest.raises(BrokerUnreachable), pool.borrow("host:1"):
        pass
    assert pool.is_suspect("host:1")
    assert not pool.is_suspect("host:2")
    peers.is_refusing = False
    with pool.borrow("host:1"):
        pass
    assert not pool.is_suspect("host:1")
    pool.close()


def test_a_forked_process_starts_without_connections(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ConnectionPool()
    with pool.borrow("host:1") as first:
        pass
    monkeypatch.setattr("tandemmq.spark.wire.os.getpid", lambda: -1)
    with pool.borrow("host:1") as second:
        assert second is not first
    first.close()
    pool.close()
