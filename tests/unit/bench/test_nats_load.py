"""NATS's text protocol is cut into frames wherever it is torn, and a load counts what a server answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nats_load import READ_AT_ONCE, NatsFrame, NatsFrames, publish_frame, read_load, send_load
from tandemmq.errors import TandemError

TALK = [
    (b'INFO {"version":"2.9.10"}\r\n', NatsFrame(b"INFO", b"", b'{"version":"2.9.10"}')),
    (b"PING\r\n", NatsFrame(b"PING")),
    (b"+OK\r\n", NatsFrame(b"+OK")),
    (
        b'MSG inbox 1  23\r\n{"stream":"B", "seq":1}\r\n',
        NatsFrame(b"MSG", b"inbox", b'{"stream":"B", "seq":1}'),
    ),
    (b"MSG bench 1 $JS.ACK.B.c.1 4\r\n\r\n\r\n\r\n", NatsFrame(b"MSG", b"bench", b"\r\n\r\n")),
    (b"MSG bench 1 0\r\n\r\n", NatsFrame(b"MSG", b"bench", b"")),
    (
        b"HMSG inbox 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        NatsFrame(b"HMSG", b"inbox", b"NATS/1.0 503\r\n\r\n"),
    ),
    (b"-ERR 'Unknown Protocol Operation'\r\n", NatsFrame(b"-ERR", b"", b"'Unknown Protocol Operation'")),
]


@given(st.lists(st.sampled_from(TALK)), st.data())
def test_frames_are_the_same_however_they_are_torn(
    talk: list[tuple[bytes, NatsFrame]], data: st.DataObject
) -> None:
    whole = b"".join(raw for raw, _ in talk)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)))))
    subject = NatsFrames()
    found = [
        frame
        for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        for frame in subject.feed(whole[begin:end])
    ]
    assert found == [frame for _, frame in talk]


def test_published_message_names_its_subject_its_inbox_and_its_size() -> None:
    assert publish_frame("bench", "inbox.7", b"body") == b"PUB bench inbox.7 4\r\nbody\r\n"


Answer = Callable[[str, bytes], bytes]


class Server:
    """Answers what a client publishes by `answer`, which receives the subject, until the client is gone."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[str] = []
        self.inboxes: list[tuple[str, set[str]]] = []
        """The subjects of each connection: the one that it listens to, and those of its answers."""
        self._answer = answer

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        connection.sendall(b"INFO {}\r\nPING\r\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"SUB "):
                    self.inboxes.append((line.split()[1].decode(), set()))
                if not line.startswith(b"PUB "):
                    continue
                subject, inbox, size = line[4:].decode().split()
                self.inboxes[-1][1].add(inbox)
                payload = lines.read(int(size) + 2)[:-2]
                self.asked.append(subject)
                try:
                    connection.sendall(self._answer(subject, payload))
                except OSError:
                    return


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, Server]]:
    server = Server(answer)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve, args=(listener,))
    thread.start()
    try:
        host, port = listener.getsockname()
        yield f"{host}:{port}", server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def message(payload: object, subject: str = "inbox") -> bytes:
    data = json.dumps(payload).encode()
    return b"MSG %b 1 %d\r\n%b\r\n" % (subject.encode(), len(data), data)


@pytest.mark.parametrize("in_flight", [1, 7])
def test_every_acknowledgement_is_counted_and_timed(in_flight: int) -> None:
    with serving(lambda subject, payload: message({"stream": "B", "seq": 1})) as (address, server):
        result = send_load(address, body_bytes=10, in_flight=in_flight, seconds=0.05)
    assert result.count == len(result.latencies_us) == len(server.asked) >= in_flight
    assert result.failed == 0
    assert set(server.asked) == {"bench"}


def test_each_connection_has_an_inbox_of_its_own() -> None:
    """A consumer of an earlier one may still serve what that one asked for."""
    with serving(lambda subject, payload: message({"seq": 1})) as (address, server):
        for _ in range(2):
            send_load(address, body_bytes=10, in_flight=2, seconds=0.01)
    (first, of_first), (second, of_second) = server.inboxes
    assert (of_first, of_second) == ({first}, {second})
    assert first != second


def test_refused_sends_are_counted_as_failed() -> None:
    with serving(lambda subject, payload: message({"error": {"code": 503}})) as (address, _):
        result = send_load(address, body_bytes=10, in_flight=4, seconds=0.02)
    assert result.failed == result.count > 0


def test_send_to_a_subject_that_no_stream_has_is_an_error() -> None:
    refusal = b"HMSG inbox 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    with serving(lambda subject, payload: refusal) as (address, _), pytest.raises(TandemError, match="503"):
        send_load(address, body_bytes=10, in_flight=1, seconds=0.02)


def test_server_that_hangs_up_is_an_error() -> None:
    def hang_up(subject: str, payload: bytes) -> bytes:
        raise OSError

    with serving(hang_up) as (address, _), pytest.raises(TandemError, match="closed the connection"):
        send_load(address, body_bytes=10, in_flight=1, seconds=0.02)


def test_backlog_is_read_again_and_again_by_new_consumers() -> None:
    stored = READ_AT_ONCE + 5
    left: dict[str, int] = {}
    asked: dict[str, list[int]] = {}

    def answer(subject: str, payload: bytes) -> bytes:
        if ".STREAM.INFO." in subject:
            return message({"state": {"messages": stored}})
        if ".CONSUMER.CREATE." in subject:
            name = f"c{len(left)}"
            left[name] = stored
            return message({"name": name})
        name = subject.rpartition(".")[2]
        batch = json.loads(payload)["batch"]
        asked.setdefault(name, []).append(batch)
        left[name] -= batch
        return message("body", "bench") * batch

    with serving(answer) as (address, _):
        result = read_load(address, seconds=1.0)
    assert len(left) > 1
    assert stored * (len(left) - 1) <= result.count <= stored * len(left)
    assert list(asked.values())[:-1] == [[READ_AT_ONCE, 5]] * (len(left) - 1)
    assert set(list(left.values())[:-1]) == {0}


def test_stream_without_messages_and_a_refused_request_are_errors() -> None:
    empty = message({"state": {"messages": 0}})
    with serving(lambda subject, payload: empty) as (address, _), pytest.raises(TandemError, match="nothing"):
        read_load(address, seconds=0.1)
    refused = message({"error": {"code": 404, "description": "stream not found"}})
    with (
        serving(lambda subject, payload: refused) as (address, _),
        pytest.raises(TandemError, match=r"refused STREAM\.INFO\.BENCH: stream not found"),
    ):
        read_load(address, seconds=0.1)
