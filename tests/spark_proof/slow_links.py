"""A relay in front of a broker that limits the bytes per second of each connection, like slow links."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK_BYTES = 64 * 1024


@contextmanager
def slow_links(
    listen: tuple[str, int], target: tuple[str, int], *, bytes_per_second: float
) -> Iterator[None]:
    """Relays connections until the end of the block; answers of `target` arrive at this rate on each."""
    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(source: socket.socket, sink: socket.socket, rate: float) -> None:
        thread = threading.Thread(target=_pump, args=(source, sink, rate))
        threads.append(thread)
        thread.start()

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = server.accept()
                far = socket.create_connection(target)
                ends.extend((near, far))
                start(near, far, 0.0)
                start(far, near, bytes_per_second)

    with socket.create_server(listen) as server:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield
        finally:
            _shut(server)
            acceptor.join()
            for end in ends:
                _shut(end)
            for thread in threads:
                thread.join()
            for end in ends:
                end.close()


def _pump(source: socket.socket, sink: socket.socket, rate: float) -> None:
    """Copies until one side ends; at most `rate` bytes per second, 0 for no limit."""
    free_at = time.monotonic()
    with suppress(OSError):
        while chunk := source.recv(CHUNK_BYTES):
            if rate:
                # The link is busy for the duration of the bytes, however they arrived.
                free_at = max(free_at, time.monotonic()) + len(chunk) / rate
                time.sleep(max(0.0, free_at - time.monotonic()))
            sink.sendall(chunk)
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
