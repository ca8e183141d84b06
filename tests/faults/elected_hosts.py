"""Three hosts of an elected group as processes: each has a controller and a broker; the name server is
separate.

| process | listens | advertises |
|---|---|---|
| broker of host N | 127.0.1.N:P | 127.0.2.N:P |
| broker of host N, for the log | 127.0.1.N:P+1 | 127.0.3.N:P+1 |
| controller N | 127.0.1.1N:P | 127.0.2.1N:P |
| name server | 127.0.0.1:P | 127.0.2.9:P |

Every process dials a link. A link identifies the dialling broker by the owner of the socket (Linux, /proc),
so that a host can be cut in both directions, and a killed process does not seem to listen still.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from fault_cluster import NEXT, SMALL
from fault_links import Link, Links

from ports import free_port
from small_disk import SmallDisk
from tandemmq.launcher import Server, write_properties

GROUP = "elected"
NUMBERS = (1, 2, 3)
DISK_BYTES = 256 << 20
"""The disk of each server, if the servers have disks of their own."""


class Member:
    """A process, and the links that lead to it."""

    def __init__(self, name: str, command: list[str], log_path: Path, links: list[Link]) -> None:
        self.name = name
        self.log_path = log_path
        self.links = links
        self._server = Server(name, command, log_path)
        self._is_frozen = False

    @property
    def pid(self) -> int:
        return self._server.pid

    def start(self) -> None:
        for link in self.links:
            link.heal()
        self._server.start()

    def kill(self) -> None:
        """Kills the process by SIGKILL; its ports refuse from then on."""
        for link in self.links:
            link.refuse()
        self._server.kill()

    def freeze(self) -> None:
        """Freezes the process by SIGSTOP: it holds its sockets and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            os.kill(self.pid, signal.SIGCONT)
            self._is_frozen = False

    def stop(self) -> None:
        self.thaw()
        self._server.stop()

    def check_alive(self) -> None:
        self._server.check_alive()

    @property
    def is_alive(self) -> bool:
        return self._server.is_alive


class ElectedHosts:
    """All processes of the group. The constructor starts them; `close` leaves nothing running."""

    def __init__(self, root: Path, *, own_disks: bool = False, **settings: object) -> None:
        """`settings` are RocketMQ's keys for the brokers. Raises MountRefused if `own_disks` is not
        possible.
        """
        self._root = root
        self.disks: dict[str, SmallDisk] = {}
        """The disks, by the name of the member; empty without `own_disks`."""
        self._has_own_disks = own_disks
        self._links = Links()
        self._members: list[Member] = []
        self.brokers: dict[int, Member] = {}
        self.controllers: dict[int, Member] = {}
        try:
            self._start(settings)
        except BaseException:
            self.close()
            raise

    def _start(self, settings: Mapping[str, object]) -> None:
        port = free_port()
        self.name_server = f"127.0.2.9:{port}"
        self.to_name_server = self._link(("127.0.2.9", port), ("127.0.0.1", port))
        self._member(
            "namesrv",
            "namesrv",
            {"bindAddress": "127.0.0.1", "listenPort": port, "kvConfigPath": self._root / "kv.json"},
            [],
        )
        places = {number: (f"127.0.2.1{number}", free_port(f"127.0.1.1{number}")) for number in NUMBERS}
        self.controller_addresses = {number: f"{host}:{port}" for number, (host, port) in places.items()}
        for number, (host, port) in places.items():
            bound = f"127.0.1.1{number}"
            peers = ";".join(f"n{one}-{address}" for one, address in self.controller_addresses.items())
            self.controllers[number] = self._member(
                f"controller-{number}",
                "controller",
                {
                    "bindAddress": bound,
                    "controllerDLegerPeers": peers,
                    "controllerDLegerSelfId": f"n{number}",
                    "controllerStorePath": self._root / f"controller-{number}",
                },
                [self._link((host, port), (bound, port))],
            )
            self._own_disk(f"controller-{number}")
        self.addresses: dict[int, str] = {}
        for number in NUMBERS:
            self._own_disk(f"broker-{number}")
            self.brokers[number] = self._make_broker(number, settings)
        with ThreadPoolExecutor(2) as pool:  # two processors are enough for the later load, too
            list(pool.map(Member.start, self._members))

    def _own_disk(self, name: str) -> None:
        if self._has_own_disks:
            self.disks[name] = SmallDisk(self._root / name, DISK_BYTES)

    def _make_broker(self, number: int, settings: Mapping[str, object]) -> Member:
        bound, advertised, for_log = (f"127.0.{net}.{number}" for net in (1, 2, 3))
        port = free_port(bound, NEXT)
        self.addresses[number] = f"{advertised}:{port}"
        own = {
            **SMALL,
            "bindAddress": bound,
            "brokerName": GROUP,
            "brokerIP1": advertised,
            "brokerIP2": for_log,
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": self.name_server,
            "storePathRootDir": self.store_path(number),
            "enableControllerMode": "true",
            "controllerAddr": ";".join(self.controller_addresses.values()),
            "allAckInSyncStateSet": "true",
        }
        to_clients = self._link((advertised, port), (bound, port))
        to_log = self._link((for_log, port + 1), (bound, port + 1))
        return self._member(f"broker-{number}", "broker", {**own, **settings}, [to_clients, to_log])

    def _member(self, name: str, command: str, settings: dict[str, object], links: list[Link]) -> Member:
        conf = write_properties(self._root / f"{name}.conf", settings)
        member = Member(name, [command, "-c", str(conf)], self._root / f"{name}.log", links)
        self._members.append(member)
        return member

    def _link(self, near: tuple[str, int], far: tuple[str, int]) -> Link:
        return self._links.add(near, far, self._name_dialler)

    def _name_dialler(self, source: tuple[str, int]) -> str:
        pids = {member.name: member.pid for member in self.brokers.values() if member.pid > 0}
        return owner_of(source, pids)

    def store_path(self, number: int) -> Path:
        return self._root / f"broker-{number}"

    # Faults of one host's broker.

    def cut_port(self, number: int, port: str) -> None:
        """Blocks a port: `client` and `log` are ports of the broker; `controller` stands for the controllers
        that it dials.
        """
        if port == "controller":
            for member in self.controllers.values():
                for link in member.links:
                    link.hold_from(self.brokers[number].name)
        else:
            self.brokers[number].links[("client", "log").index(port)].hold()

    def cut(self, number: int) -> None:
        """Blocks all traffic from this broker and to it."""
        for link in self._all_links():
            link.hold_from(self.brokers[number].name)
        for link in self.brokers[number].links:
            link.hold()

    def heal(self) -> None:
        for link in self._all_links():
            link.heal()

    def _all_links(self) -> Iterator[Link]:
        yield self.to_name_server
        for member in self._members:
            yield from member.links

    def check_alive(self) -> None:
        """Raises ProcessFailed if a process has ended by itself."""
        for member in self._members:
            member.check_alive()

    def stop_brokers(self, last: int) -> None:
        """Stops the brokers cleanly, `last` as the last one."""
        for number in sorted(self.brokers, key=lambda one: one == last):
            self.brokers[number].stop()

    def close(self) -> None:
        for member in reversed(self._members):
            member.stop()
        self._links.close()
        for disk in self.disks.values():
            disk.close(keep=True)


def owner_of(source: tuple[str, int], pids: Mapping[str, int]) -> str:
    """Returns the name of the process that owns the socket with this address; "" if none of these does."""
    host, port = source
    wanted = f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as file:
        inodes = [fields[9] for line in file if (fields := line.split())[1] == wanted]
    for name, pid in pids.items():
        if any(f"socket:[{inode}]" in _open_files(pid) for inode in inodes):
            return name
    return ""


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(entry.path))
    return found


@contextmanager
def elected_hosts(root: Path, *, own_disks: bool = False, **settings: object) -> Iterator[ElectedHosts]:
    hosts = ElectedHosts(root, own_disks=own_disks, **settings)
    try:
        yield hosts
    finally:
        hosts.close()
