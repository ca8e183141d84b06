"""The load generator's frames are what a broker expects, and every answer is counted."""

from __future__ import annotations

import socket
import threading

from tandemmq.bench.generator import run_load, send_frames
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.send import SendRequestV2


def answer_all(listener: socket.socket, code: int) -> None:
    connection, _ = listener.accept()
    decoder = FrameDecoder()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(b"".join(encode_frame(command.reply(code)) for command in decoder.feed(data)))


def load_with_answers(
    code: int, frames: list[bytes], in_flight: int, seconds: float = 0.05
) -> tuple[int, int, int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = threading.Thread(target=answer_all, args=(listener, code))
        peer.start()
        host, port = listener.getsockname()
        result = run_load(f"{host}:{port}", frames, in_flight=in_flight, seconds_max=seconds)
        peer.join()
    return result.count, result.failed, len(result.latencies_us)


def test_frames_decode_to_send_requests() -> None:
    frames = send_frames("T", 4, 1024, 5)
    commands: list[Command] = FrameDecoder().feed(b"".join(frames))
    requests = [command.decode(SendRequestV2) for command in commands]
    assert [request.queue_id for request in requests] == [0, 1, 2, 3, 0]
    assert {request.topic for request in requests} == {"T"}
    assert {len(command.body) for command in commands} == {1024}


def test_every_answer_is_counted_and_timed() -> None:
    for in_flight in (1, 7):
        count, failed, timed = load_with_answers(0, send_frames("T", 1, 10, 16), in_flight)
        assert count == timed > 0
        assert failed == 0


def test_refusals_are_counted_as_failed() -> None:
    count, failed, _ = load_with_answers(2, send_frames("T", 1, 10, 4), 4)
    assert failed == count > 0


def test_a_load_whose_time_is_over_at_once_is_one_round() -> None:
    """A probe of a broker's sends does not count silence as an answer."""
    for code, failures in ((0, 0), (2, 3)):
        found = load_with_answers(code, send_frames("T", 1, 10, 16), 3, seconds=0.0)
        assert found == (3, failures, 3)
