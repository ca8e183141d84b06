"""A light load generator: replays prepared send frames over one connection with a fixed number in flight.

It shares no code with the client library and does almost nothing per message, so that it measures the broker.
Answers are paired with sends in order, which holds for sends of one connection.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from dataclasses import dataclass

SEND_MESSAGE_V2 = 310
_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of one run: the number of sends, the wall time in seconds, each send's latency in
    microseconds, and the number of sends that were answered with an error.
    """

    count: int
    seconds: float
    latencies_us: list[float]
    failed: int

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.count / self.seconds

    def percentile_us(self, share: float) -> float:
        """Returns the latency that `share` (0..1) of the sends did not exceed."""
        ordered = sorted(self.latencies_us)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickRow:
    """One measured line: the setting, the number of calls in flight, and the cost."""

    setting: str
    in_flight: int
    result: LoadResult
    processor_us: dict[str, float]
    resident_mib: dict[str, float]


def send_frames(topic: str, queue_count: int, body_bytes: int, count: int) -> list[bytes]:
    """Returns `count` frames as a Java producer sends them (JSON header, code 310), spread over the
    queues.
    """
    frames = []
    body = b"x" * body_bytes
    for number in range(count):
        fields = {
            "a": "bench",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(number % queue_count),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": f"UNIQ_KEY\x017F0000010001{number:020X}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
            "j": "0",
            "k": "false",
            "l": "0",
            "m": "false",
        }
        header = json.dumps(
            {
                "code": SEND_MESSAGE_V2,
                "extFields": fields,
                "flag": 0,
                "language": "JAVA",
                "opaque": number + 1,
                "serializeTypeCurrentRPC": "JSON",
                "version": 479,
            },
            separators=(",", ":"),
        ).encode()
        length = 4 + len(header) + len(body)
        frames.append(length.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body)
    return frames


def run_load(address: str, frames: list[bytes], *, in_flight: int, seconds_max: float) -> LoadResult:
    """Sends the frames repeatedly for `seconds_max`, `in_flight` at a time; returns the result.

    At least one chunk is sent, because on a busy machine the time may be over before the first send.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _drive(connection, frames, in_flight, seconds_max)


def _drive(connection: socket.socket, frames: list[bytes], in_flight: int, seconds_max: float) -> LoadResult:
    clock = time.perf_counter
    waiting: deque[float] = deque()
    latencies: list[float] = []
    failed = 0
    buffered = bytearray()
    next_frame = 0
    started = clock()
    deadline = started + seconds_max
    sent_all = False
    while waiting or not sent_all:
        now = clock()
        sent_all = next_frame > 0 and now >= deadline
        room = 0 if sent_all else in_flight - len(waiting)
        if room:
            first = next_frame % len(frames)
            chunk = frames[first : first + room]
            next_frame += len(chunk)
            connection.sendall(b"".join(chunk))
            waiting.extend([now] * len(chunk))
        if waiting:
            data = connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection")
            buffered += data
            now = clock()
            position = 0
            while len(buffered) - position >= 4:
                size = 4 + int.from_bytes(buffered[position : position + 4], "big")
                if len(buffered) - position < size:
                    break
                failed += b'"code":0,' not in buffered[position : position + size]
                latencies.append((now - waiting.popleft()) * 1e6)
                position += size
            del buffered[:position]
    return LoadResult(count=len(latencies), seconds=clock() - started, latencies_us=latencies, failed=failed)
