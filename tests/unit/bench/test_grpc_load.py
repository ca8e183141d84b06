"""The gRPC load generator's frames are what a proxy expects, and every answer is counted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import h2.config
import h2.connection
import h2.events
import pytest
from hpack import Decoder

from tandemmq.bench.grpc_load import GrpcLoad, HeaderTable, messages_of
from tandemmq.bench.proxy_load import send_requests
from tandemmq.errors import BrokerUnreachable
from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import message_class

Answer = Callable[[bytes], list[bytes]]


class Peer:
    """A server of HTTP/2 that records requests and answers with messages."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.paths: set[str] = set()
        self.request_ids: list[str] = []
        self.requests: dict[int, bytes] = {}

    def serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        http2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        http2.initiate_connection()
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                for event in http2.receive_data(data):
                    self._on_event(http2, event)
                connection.sendall(http2.data_to_send())

    def _on_event(self, http2: h2.connection.H2Connection, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            self.paths.add(headers[":path"])
            self.request_ids.append(headers["x-mq-request-id"])
        elif isinstance(event, h2.events.DataReceived):
            self.requests[event.stream_id] = self.requests.get(event.stream_id, b"") + event.data
            http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            http2.send_headers(event.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
            for message in self._answer(self.requests[event.stream_id]):
                http2.send_data(event.stream_id, b"\0" + len(message).to_bytes(4, "big") + message)
            http2.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)


def status_of(code: int) -> bytes:
    data: bytes = message_class("SendMessageResponse")(status={"code": code}).SerializeToString()
    return data


@contextmanager
def load_of(answer: Answer) -> Iterator[tuple[GrpcLoad, Peer]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = Peer(answer)
        thread = threading.Thread(target=peer.serve, args=(listener,))
        thread.start()
        host, port = listener.getsockname()
        try:
            with GrpcLoad(f"{host}:{port}", "bench") as load:
                yield load, peer
        finally:
            thread.join()


def test_header_blocks_decode_while_the_table_forgets_old_entries() -> None:
    table, decoder = HeaderTable(), Decoder()
    for number in range(200):
        fields = [
            (b":path", b"/a"),
            (b"te", b"trailers"),
            (b"id", b"%030d" % number),
            (b"t", b"%du" % number),
        ]
        assert [
            (bytes(name), bytes(value)) for name, value in decoder.decode(table.encode(fields), raw=True)
        ] == fields
    assert len(table.encode(fields)) < 10, "known fields are references"


def test_every_call_is_counted_and_timed() -> None:
    requests = send_requests("T", 100, 20)
    for in_flight in (1, 7):
        with load_of(lambda _: [status_of(20_000)]) as (load, peer):
            found = load.run("SendMessage", iter(requests), in_flight=in_flight, seconds_max=60.0)
        assert (found.count, found.failed, len(found.latencies_us)) == (20, 0, 20)
        assert peer.paths == {f"{SERVICE}SendMessage"}
        assert len(set(peer.request_ids)) == 20
        shape = message_class("SendMessageRequest")
        received = [shape.FromString(data[5:]).messages[0] for data in peer.requests.values()]
        assert len({message.system_properties.message_id for message in received}) == 20


@pytest.mark.parametrize("answer", [[status_of(42_900)], []])
def test_an_answer_without_success_is_counted_as_failed(answer: list[bytes]) -> None:
    with load_of(lambda _: answer) as (load, _):
        found = load.run("SendMessage", iter([b"a", b"b"]), in_flight=2, seconds_max=60.0)
    assert (found.count, found.failed) == (2, 2)


def test_a_load_whose_time_is_over_at_once_is_one_round() -> None:
    with load_of(lambda _: [status_of(20_000)]) as (load, _):
        assert load.run("SendMessage", iter([b"a"] * 9), in_flight=3, seconds_max=0.0).count == 3


def test_large_requests_wait_for_the_window_of_the_connection() -> None:
    with load_of(lambda _: [status_of(20_000)]) as (load, peer):
        found = load.run("SendMessage", iter([bytes(30_000)] * 10), in_flight=4, seconds_max=60.0)
    assert found.count == 10
    assert {len(data) for data in peer.requests.values()} == {30_005}


def test_an_answer_of_several_messages_is_returned_whole() -> None:
    with load_of(lambda request: [request, b"", b"x" * 10_000]) as (load, _):
        body = load.ask("ReceiveMessage", b"abc")
    assert list(messages_of(body)) == [b"\0\0\0\0\3abc", b"", b"x" * 10_000]


def test_an_open_stream_leaves_the_connection_usable() -> None:
    with load_of(lambda _: [status_of(20_000)]) as (load, peer):
        load.open_stream("Telemetry", b"settings")
        assert load.ask("QueryRoute", b"")
    assert peer.requests == {1: b"\0\0\0\0\x08settings", 3: bytes(5)}


def test_the_end_of_the_connection_ends_the_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        host, port = listener.getsockname()
        with pytest.raises((BrokerUnreachable, ConnectionError)), GrpcLoad(f"{host}:{port}", "bench") as load:
            load.ask("QueryRoute", b"")
        thread.join()
