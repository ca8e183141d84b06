"""Measures the speed at which bytes pass between two processes of this machine without any processing.

`python -m bench.loopback send PORT BYTES` is the other process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tandemmq.units import MIB

_CHUNK_BYTES = MIB


def measure_loopback(size_bytes: int, path: Path | None) -> float:
    """Returns the bytes per second of plain `sendall` and `recv_into`; with `path` the bytes are also written
    to a new file there.

    Raises:  ConnectionError if the sender ends early; OSError if the disk accepts no writes.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-m", "bench.loopback", "send", str(server.getsockname()[1])]
        sender = subprocess.Popen([*command, str(size_bytes)])
        try:
            connection, _ = server.accept()
            with connection:
                if path is None:
                    return _receive(connection, size_bytes, None)
                with path.open("wb", buffering=0) as file:
                    os.posix_fallocate(file.fileno(), 0, size_bytes)
                    return _receive(connection, size_bytes, file.fileno())
        finally:
            sender.wait()
            if path is not None:
                path.unlink(missing_ok=True)


def _receive(connection: socket.socket, size_bytes: int, descriptor: int | None) -> float:
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    left = size_bytes - connection.recv_into(view)
    begun_at = time.perf_counter()
    while left:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionError("the sender ended early")
        if descriptor is not None:
            os.pwrite(descriptor, view[:count], size_bytes - left)
        left -= count
    return size_bytes / (time.perf_counter() - begun_at)


def _send(port: int, size_bytes: int) -> None:
    data = memoryview(os.urandom(_CHUNK_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while size_bytes:
            chunk = data[: min(size_bytes, len(data))]
            connection.sendall(chunk)
            size_bytes -= len(chunk)


if __name__ == "__main__":
    _send(int(sys.argv[2]), int(sys.argv[3]))
