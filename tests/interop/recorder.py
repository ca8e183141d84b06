"""A TCP proxy between Java peers that keeps one frame of every kind it sees.

Peers tell each other addresses in their bodies; the proxy writes its own there, of the same length, so that
the next connection goes through a proxy as well.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusters import HOST, broker_port

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.codes import LanguageCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder

FRAME_BYTES_MAX = 6_000
"""Longer ones make no better examples."""
SHAPES_MAX = 3
"""Frames of one kind that differ in the fields they carry."""


@dataclass
class Recorder:
    """The frames that were kept, by kind; safe for threads."""

    replaced: Mapping[bytes, bytes] = field(default_factory=dict)
    """Texts that must not be recorded, and their replacements of the same length."""
    vectors: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, frame: bytes, asked: dict[int, int]) -> None:
        """Looks at one frame; `asked` is the codes of requests by their opaque, for frames the other way."""
        try:
            (command,) = FrameDecoder().feed(frame)
        except (RemoteProtocolError, ValueError):
            return
        if not command.is_response:
            if command.language == LanguageCode.JAVA:
                asked[command.opaque] = command.code
                self._keep("request", command.code, None, command, frame)
            return
        code = asked.pop(command.opaque, None)
        if code is not None and command.language == LanguageCode.JAVA:
            self._keep("response", code, command.code, command, frame)

    def _keep(self, kind: str, code: int, status: int | None, command: Command, frame: bytes) -> None:
        if len(frame) > FRAME_BYTES_MAX:
            return
        same = kind, code, status, command.serialize_type, bool(command.body)
        key = (*same, *sorted(command.fields))
        with self._lock:
            if key in self.vectors or sum(other[:5] == same for other in self.vectors) >= SHAPES_MAX:
                return
            for secret, other in self.replaced.items():
                assert len(secret) == len(other)
                frame = frame.replace(secret, other)
            row = {"kind": kind, "code": code, "frame": base64.b64encode(frame).decode()}
            self.vectors[key] = row if status is None else {**row, "status": status}

    def write(self, path: Path) -> int:
        """The number of vectors written, sorted by kind, one a line."""
        rows = sorted(self.vectors.items(), key=lambda item: str((item[0][1], item[0])))
        text = ",\n".join(json.dumps(row, sort_keys=True) for _, row in rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[\n{text}\n]\n")
        return len(rows)


class Tap:
    """A proxy of one address. `rewritten` are addresses in frames to the one who connected."""

    def __init__(self, recorder: Recorder, target: str, rewritten: Mapping[str, str] | None = None) -> None:
        self.target = target
        self.rewritten = dict(rewritten or {})
        self._recorder = recorder
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((HOST, free_port_of_length(target)))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, port = self.target.rsplit(":", 1)
                far = socket.create_connection((host, int(port)))
                self._sockets += near, far
                there: dict[int, int] = {}
                back: dict[int, int] = {}
                for source, sink, is_answer in ((near, far, False), (far, near, True)):
                    arguments = source, sink, is_answer, there, back
                    threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        is_answer: bool,
        there: dict[int, int],
        back: dict[int, int],
    ) -> None:
        """Hands frames on until an end closes. Requests go both ways, each with opaques of its own."""
        try:
            while frame := _read_frame(source):
                if is_answer:
                    for real, shown in self.rewritten.items():
                        frame = frame.replace(real.encode(), shown.encode())
                is_response = _is_response(frame)
                self._recorder.take(frame, there if is_answer == is_response else back)
                sink.sendall(frame)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


def free_port_of_length(address: str) -> int:
    """A free port with as many digits as the address has, so that one can stand for the other."""
    for _ in range(100):
        port = broker_port()
        if len(str(port)) == len(address.rsplit(":", 1)[1]):
            return port
    raise AssertionError(f"no free port as long as in {address}")


def _is_response(frame: bytes) -> bool:
    try:
        return FrameDecoder().feed(frame)[0].is_response
    except (RemoteProtocolError, IndexError):
        return False


def _read_frame(source: socket.socket) -> bytes:
    """The next whole frame; empty at the end."""
    head = _read(source, 4)
    if len(head) < 4:
        return b""
    return head + _read(source, struct.unpack(">i", head)[0])


def _read(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (piece := source.recv(count - len(data))):
        data += piece
    return bytes(data)
