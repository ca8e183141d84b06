"""Producers of RocketMQ's Java clients that send to a topic while its cluster is harmed: a process per
release line.

They write the outcome of each send (`tests/interop/java/SendOn.java`) to a file. Their numbers start far
apart, so that a number identifies the sender of a message.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from interop.java_peers import LINES, environment, java_command, programs

OURS = "ours"
NUMBERS = 1_000_000_000
"""The size of each client's range of numbers; the TandemMQ producer has the first range."""
CLIENTS = (OURS, *(f"java {name}" for name in LINES))
FILLER = "x" * 100
POLL_S = 1.0
"""The interval at which they look up routes: `pollNameServerInterval`, 30 s by default."""
STOP_S = 60.0
"""The time limit for stopping; a send in flight ends first."""


def client_of(number: int) -> str:
    """Returns the client that sent the message with this number."""
    return CLIENTS[number // NUMBERS]


def body_of(number: int) -> bytes:
    """Returns the body of the message with this number, for any sender."""
    return f"{number} {FILLER}".encode()


@dataclass(slots=True)
class JavaSend:
    """One send, with times by the monotonic clock, which all processes share."""

    number: int
    begun_s: float
    done_s: float | None = None
    """None: its outcome is unknown."""
    queue_id: int = -1
    queue_offset: int = -1
    message_id: str = ""
    """Only for an acknowledged send."""
    reason: str = ""
    """Only for a failed send."""


def read_sends(lines: Iterable[str]) -> list[JavaSend]:
    """Parses the lines of SendOn into sends, in the order in which they began; other lines are ignored."""
    sends: dict[int, JavaSend] = {}
    for line in lines:
        match line.rstrip("\n").split(" ", 3):
            case ["BEGUN", number, nanos]:
                sends[int(number)] = JavaSend(int(number), int(nanos) / 1e9)
            case ["OK", number, nanos, rest]:
                send = sends[int(number)]
                send.done_s = int(nanos) / 1e9
                queue_id, queue_offset, send.message_id = rest.split(" ")
                send.queue_id, send.queue_offset = int(queue_id), int(queue_offset)
            case ["FAILED", number, nanos, reason]:
                send = sends[int(number)]
                send.done_s, send.reason = int(nanos) / 1e9, reason
    return [*sends.values()]


class JavaSender:
    """One process and its sends so far."""

    def __init__(self, client: str, name_server: str, topic: str, folder: Path) -> None:
        self.client = client
        line = LINES[client.removeprefix("java ")]
        folder.mkdir(parents=True)
        self._path = folder / "sends"
        first = CLIENTS.index(client) * NUMBERS
        command = java_command(
            programs(line), "SendOn", name_server, topic, str(first), FILLER, home=folder / "home"
        )
        with self._path.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=environment(folder / "home"),
                cwd=folder,
            )
        self._read_bytes = 0
        self._acknowledged = 0

    def check_alive(self) -> None:
        """Raises AssertionError if the process has ended by itself."""
        assert self._process.poll() is None, f"{self.client} has ended; its output is in {self._path}"

    def acknowledged(self) -> int:
        """Returns the number of sends acknowledged so far."""
        self.check_alive()
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._read_bytes += len(whole) + 1
            self._acknowledged += sum(line.startswith(b"OK ") for line in whole.split(b"\n"))
        return self._acknowledged

    def sends(self) -> list[JavaSend]:
        """Returns all sends; complete once the process is closed."""
        text = self._path.read_text(encoding="utf-8", errors="replace")
        return read_sends(line for line in text.splitlines(keepends=True) if line.endswith("\n"))

    def close(self) -> None:
        """Ends the process after the send in flight; by force after STOP_S."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
