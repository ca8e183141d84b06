"""The processes that are fuzzed, and the detection of their faults: they exit, log an exception, do not
answer, or grow without bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sim.fuzz.corpus import BROKER
from tandemmq.bench.process_stats import resident_bytes
from tandemmq.launcher import ProcessFailed, Server, stopping, write_properties
from tandemmq.units import MIB

HOST = "127.0.0.1"
BAD_LOG = re.compile(r"^.*(?:Traceback| request\.failed | task\.failed |never retrieved)", re.MULTILINE)
HA_ADDRESS = re.compile(r"broker\.started .*ha_address=(\S+)")
EXCERPT_LINES = 12


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a batch: the number of frames sent, and whether the server closed the connection or did not
    answer.
    """

    frame_count: int
    is_closed_by_server: bool = False
    is_silent: bool = False


class Subject(Protocol):
    """A server that is fuzzed."""

    @property
    def is_alive(self) -> bool: ...

    def fault(self) -> str | None:
        """Returns the fault since the last call; None if there is none."""

    def resident_mib(self) -> int: ...


@dataclass(slots=True)
class Victim:
    """One server: its address and its log."""

    server: Server
    log_path: Path
    host: str
    port: int
    log_bytes_read: int = 0

    @property
    def is_alive(self) -> bool:
        return self.server.is_alive

    def fault(self) -> str | None:
        """Returns the fault since the last call; None if there is none."""
        try:
            self.server.check_alive()
        except ProcessFailed as error:
            return f"{error}\n{self._new_log()[-2000:]}"
        text = self._new_log()
        found = BAD_LOG.search(text)
        if found is None:
            return None
        lines = text[found.start() :].strip().splitlines()
        return "\n".join(lines[:EXCERPT_LINES] + (["...", *lines[-1:]] if len(lines) > EXCERPT_LINES else []))

    def resident_mib(self) -> int:
        return resident_bytes(self.server.pid) // MIB

    def _new_log(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self.log_bytes_read)
            data = log.read()
        self.log_bytes_read += len(data)
        return data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Victims:
    """A name server, a broker, and the broker's HA port."""

    name_server: Victim
    broker: Victim
    ha: Victim


@contextmanager
def victims(directory: Path) -> Iterator[Victims]:
    """Starts both processes and stops them at the end. Default settings, but small files."""
    with ExitStack() as stack:
        settings: dict[str, object] = {
            "bindAddress": HOST,
            "listenPort": 0,
            "kvConfigPath": directory / "kvConfig.json",
        }
        conf = write_properties(directory / "namesrv.conf", settings)
        log = directory / "namesrv.log"
        name_server = Server("namesrv", ["namesrv", "-c", str(conf)], log)
        stack.enter_context(stopping([name_server]))
        name_server.start()
        settings = {
            "brokerName": BROKER,
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "listenPort": 0,
            "brokerRole": "SYNC_MASTER",
            "namesrvAddr": name_server.address,
            "storePathRootDir": directory / "store",
            "mappedFileSizeCommitLog": 64 * MIB,
            "metricsExporterType": "DISABLE",
            "enablePropertyFilter": "true",
            "recallMessageEnable": "true",
        }
        conf = write_properties(directory / "broker.conf", settings)
        broker_log = directory / "broker.log"
        broker = Server("broker", ["broker", "-c", str(conf)], broker_log)
        stack.enter_context(stopping([broker]))
        broker.start()
        yield Victims(
            _victim(name_server, log, name_server.address),
            _victim(broker, broker_log, broker.address),
            _victim(broker, broker_log, _ha_address(broker_log)),
        )


def _ha_address(log_path: Path) -> str:
    found = HA_ADDRESS.search(log_path.read_text(encoding="utf-8"))
    assert found is not None, "the broker says where its HA port is"
    return found.group(1)


def _victim(server: Server, log_path: Path, address: str) -> Victim:
    host, _, port = address.rpartition(":")
    return Victim(server, log_path, host, int(port))
