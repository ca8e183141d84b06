"""Clients of six kinds in three networks, before an elected pair of brokers in a fourth one.

    make networks ARGS="--only java --keep"

Network namespaces are the machines. The servers are in a network with IPv6 only. A gateway passes
connections on to them from `public` (IPv4), `vpn` (IPv4, by host names) and `six` (IPv6 only). No packet
takes another way, and servers see the gateway as the peer of all clients. Each network has a listener of
the name server, and advertised addresses of both brokers.

Ends with `NETWORKS OK clients=N networks=3 failed=0`; without namespaces, with `NETWORKS SKIPPED`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import java_peers
from java_peers import LINE_4, LINE_5, Line
from language_peers import GRPC_LANGUAGES, LANGUAGES, absent_tools, command_of

HERE = Path(__file__).parent
NETNS = Path("/etc/netns")
READY_S = 90
CASE_S = 600
SERVER, PEER = "fd77::1", "fd77::2"
PREFIX = f"tmq{os.getpid()}"


@dataclass(frozen=True)
class ClientNetwork:
    """A network of clients: its two addresses, and the texts of the servers there."""

    name: str
    gateway: str
    host: str
    listener: int
    """The port of its listener at the name server, and at the gateway."""
    ports: tuple[int, int]
    """The ports of the two brokers at the gateway."""
    name_of_gateway: str = ""

    @property
    def place(self) -> str:
        return self.name_of_gateway or self.number

    @property
    def number(self) -> str:
        return f"[{self.gateway}]" if ":" in self.gateway else self.gateway

    @property
    def name_server(self) -> str:
        return f"{self.place}:{self.listener}"

    @property
    def proxy(self) -> str:
        """The endpoint for a client of the gRPC protocol. The official Python client cuts it at the first
        colon, so an IPv6 host needs a name.
        """
        return f"{'gateway.six.test' if ':' in self.gateway else self.place}:8081"

    def relays(self) -> Iterator[str]:
        own = self.number
        yield f"{own}:{self.listener}=[{SERVER}]:{self.listener}"
        yield f"{own}:8081=[{SERVER}]:8081"
        for port, broker in zip(self.ports, (SERVER, PEER), strict=True):
            yield f"{own}:{port}=[{broker}]:10911"


NETWORKS = (
    ClientNetwork("public", "10.77.1.1", "10.77.1.2", 19876, (20911, 20921)),
    ClientNetwork("vpn", "10.77.2.1", "10.77.2.2", 29876, (10911, 10921), "gateway.vpn.test"),
    ClientNetwork("six", "fd77:3::1", "fd77:3::2", 39876, (10911, 10921)),
)


class Skipped(Exception):
    """A reason why this machine cannot run the proof."""


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


def inside(space: str, command: Sequence[str]) -> list[str]:
    return ["ip", "netns", "exec", f"{PREFIX}-{space}", *command]


@contextmanager
def namespaces() -> Iterator[None]:
    """Makes the machines and their cables; removes everything at the end."""
    spaces = ("server", "peer", "gate", *(network.name for network in NETWORKS))
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Skipped("network namespaces need root and the command ip")
    try:
        try:
            for space in spaces:
                run("ip", "netns", "add", f"{PREFIX}-{space}")
                run(*inside(space, ["ip", "link", "set", "lo", "up"]))
                folder = NETNS / f"{PREFIX}-{space}"
                folder.mkdir(parents=True)
                (folder / "hosts").write_text(
                    f"127.0.0.1 localhost {socket.gethostname()}\n::1 localhost\n"
                    "10.77.2.1 gateway.vpn.test\nfd77:3::1 gateway.six.test\n"
                )
                (folder / "resolv.conf").write_text("")
            run(*inside("gate", ["ip", "link", "add", "inner", "type", "bridge"]))
            run(*inside("gate", ["ip", "link", "set", "inner", "up"]))
            run(*inside("gate", ["ip", "addr", "add", "fd77::fe/64", "dev", "inner", "nodad"]))
            for space, address in (("server", SERVER), ("peer", PEER)):
                cable(space, f"{address}/64", None)
                # The servers choose their addresses by this route; the gateway forwards no packets.
                run(*inside(space, ["ip", "-6", "route", "add", "default", "via", "fd77::fe"]))
            for network in NETWORKS:
                bits = 64 if ":" in network.host else 24
                cable(network.name, f"{network.host}/{bits}", f"{network.gateway}/{bits}")
        except OSError as error:
            raise Skipped(str(error)) from None
        yield
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", f"{PREFIX}-{space}"], capture_output=True, check=False)
            shutil.rmtree(NETNS / f"{PREFIX}-{space}", ignore_errors=True)


def cable(space: str, address: str, gateway: str | None) -> None:
    """Connects a machine with the gateway, or with its bridge."""
    run(
        "ip",
        "-n",
        f"{PREFIX}-gate",
        *f"link add to-{space} type veth peer name eth netns {PREFIX}-{space}".split(),
    )
    for where, device, own in (("gate", f"to-{space}", gateway), (space, "eth", address)):
        if own is None:
            run(*inside(where, ["ip", "link", "set", device, "master", "inner"]))
        else:
            run(*inside(where, ["ip", "addr", "add", own, "dev", device, *(["nodad"] if ":" in own else [])]))
        run(*inside(where, ["ip", "link", "set", device, "up"]))


class Process:
    """A program on one of the machines, with its output in a file."""

    def __init__(self, space: str, name: str, command: Sequence[str], folder: Path) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                inside(space, command),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def wait_for(self, text: str, seconds: float = READY_S) -> None:
        end = time.monotonic() + seconds
        while text not in self.log.read_text(errors="replace"):
            assert self._process.poll() is None, f"{self.log.name} ended:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < end, f"no {text!r} in {self.log.name}:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.05)

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def finish(self, seconds: float = CASE_S) -> None:
        """Waits for the end of a case, which prints OK."""
        code = self._process.wait(seconds)
        text = self.log.read_text(errors="replace")
        assert code == 0 and "OK" in text.splitlines(), f"{self.log.name} ended with {code}:\n{text[-3000:]}"  # noqa: PT018

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class Site:
    """The servers and the gateway."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.brokers: dict[str, Process] = {}

    def start(self) -> None:
        relays = [relay for network in NETWORKS for relay in network.relays()]
        gateway = [sys.executable, str(HERE / "network_relay.py"), *relays]
        self._run("gate", "gateway", gateway).wait_for("READY")
        listeners = ";".join(f"{network.name}={network.listener}" for network in NETWORKS)
        self.serve("server", "namesrv", {"networkListeners": listeners}, "kvConfigPath", "configStorePath")
        controllers = {"controllerDLegerPeers": f"n0-[{PEER}]:9878", "controllerDLegerSelfId": "n0"}
        self.serve("peer", "controller", controllers, "controllerStorePath", "configStorePath")
        for number, (space, address) in enumerate((("server", SERVER), ("peer", PEER))):
            advertised = ";".join(f"{one.name}={one.place}:{one.ports[number]}" for one in NETWORKS)
            settings = {
                "namesrvAddr": f"[{SERVER}]:9876",
                "brokerName": "broker-a",
                "enableControllerMode": "true",
                "controllerAddr": f"[{PEER}]:9878",
                "advertisedAddresses": advertised,
                "transactionTimeOut": "3000",
                "transactionCheckInterval": "1000",
                "mappedFileSizeCommitLog": str(64 << 20),
            }
            self.brokers[f"[{address}]:10911"] = self.serve(space, "broker", settings, "storePathRootDir")
        self.serve("server", "proxy", {"namesrvAddr": f"[{SERVER}]:9876"}, "proxyStorePath")

    def serve(self, space: str, program: str, settings: dict[str, str], *paths: str) -> Process:
        """Starts a server with its defaults but these settings, and files in the folder."""
        root = self.folder / f"{space}-{program}"
        values = {**settings, **{path: str(root / path) for path in paths}}
        words = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "tandemmq", program, *words]
        started = self._run(space, f"{space}-{program}", command)
        started.wait_for("ready")
        return started

    def _run(self, space: str, name: str, command: Sequence[str]) -> Process:
        started = Process(space, name, command, self.folder)
        self._stack.callback(started.stop)
        return started

    def ours(self, network: ClientNetwork, case: str) -> Process:
        """A case of our client in a network."""
        command = [sys.executable, str(HERE / "network_client.py"), case, network.name_server]
        topic = f"{case}-{network.name}"
        return self._run(
            network.name, topic, [*command, "clients-" + network.name if case == "spark" else topic]
        )

    def look(self, case: str, argument: str) -> str:
        """Runs a case beside the name server, and returns its output."""
        command = [sys.executable, str(HERE / "network_client.py"), case, f"[{SERVER}]:9876", argument]
        started = self._run("server", f"{case}-{len(list(self.folder.iterdir()))}", command)
        started.finish()
        return started.log.read_text()

    def java(self, network: ClientNetwork, line: Line, program: str) -> Process:
        name = f"{program}-{line.name.replace('.', '')}-{network.name}"
        home = self.folder / name
        home.mkdir()
        command = java_peers.java_command(
            java_peers.programs(line), program, network.name_server, name, home=home
        )
        return self._run(network.name, name, ["env", f"ROCKETMQ_HOME={home}", *command])

    def go(self, network: ClientNetwork) -> Process:
        name = f"go-{network.name}"
        # This client wants a number for its name server, but takes host names for brokers.
        name_server = f"{network.number}:{network.listener}"
        command = [*command_of(LANGUAGES["go"]), "push", name_server, name, "broker-a"]
        return self._run(network.name, name, ["env", f"HOME={self.folder}", *command])

    def grpc(self, network: ClientNetwork) -> Process:
        name = f"grpc-{network.name}"
        self.look("prepare", name)
        command = [*command_of(GRPC_LANGUAGES["python"]), "normal", network.proxy, name]
        return self._run(network.name, name, ["env", "PEER_PROXY=ours", f"HOME={self.folder}", *command])


def cases(site: Site) -> list[tuple[str, Callable[[], Process]]]:
    """All cases but the change of the master: each starts a client, which ends by itself."""
    made: list[tuple[str, Callable[[], Process]]] = []
    for network in NETWORKS:
        for case in ("clients", "check", "reply", "spark"):
            made.append((f"{case}-{network.name}", lambda n=network, c=case: site.ours(n, c)))  # type: ignore[misc]
        for line in (LINE_4, LINE_5):
            for program in ("Sends", "RequestReply") if network.name == "public" else ("Sends",):
                key = f"{program}-{line.name}-{network.name}"
                made.append((key, lambda n=network, o=line, p=program: site.java(n, o, p)))  # type: ignore[misc]
        made.append((f"go-{network.name}", lambda n=network: site.go(n)))  # type: ignore[misc]
        made.append((f"grpc-{network.name}", lambda n=network: site.grpc(n)))  # type: ignore[misc]
    return made


def change_master(site: Site) -> list[str]:
    """Kills the master while a client in each network sends; returns the failures."""
    staying = {network.name: site.ours(network, "stay") for network in NETWORKS}
    for one in staying.values():
        one.wait_for("SENDING")
    shown = site.look("master", "-")
    master = shown.partition("MASTER ")[2].split()[0]
    site.brokers[master].kill()
    site.look("moved", master)
    for one in staying.values():
        one.end_input()
    return [f"stay-{name}: {failure}" for name, one in staying.items() if (failure := failure_of(one))]


def failure_of(process: Process) -> str:
    try:
        process.finish()
    except (AssertionError, subprocess.TimeoutExpired) as error:
        process.stop()
        return str(error)
    return ""


def prove(only: str, jobs: int) -> tuple[int, list[str]]:
    failures: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(namespaces())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandemmq-networks-")))
        site = Site(folder, stack)
        site.start()
        chosen = [
            (name, start) for name, start in cases(site) if any(word in name for word in only.split(","))
        ]

        def follow(case: tuple[str, Callable[[], Process]]) -> str:
            began = time.monotonic()
            failure = failure_of(case[1]())
            print(
                f"  {case[0]}: {'FAILED' if failure else 'ok'} {time.monotonic() - began:.1f} s", flush=True
            )
            return failure and f"{case[0]}: {failure}"

        # Spark reads what the first case of its network has sent.
        late = [case for case in chosen if case[0].startswith("spark")]
        with ThreadPoolExecutor(jobs) as pool:
            for group in ([case for case in chosen if case not in late], late):
                failures += filter(None, pool.map(follow, group))
        count = len(chosen)
        if not only or only == "stay":
            failures += change_master(site)
            count += len(NETWORKS)
    return count, failures


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="Run only cases whose name contains this text.")
    parser.add_argument("--jobs", type=int, default=2, help="Clients that run at the same time.")
    options = parser.parse_args()
    missing = [*java_peers.missing_tools(), *absent_tools(LANGUAGES["go"])]
    if missing:
        print(f"NETWORKS SKIPPED: {', '.join(missing)} missing")
        return 0
    java_peers.programs(LINE_4)
    java_peers.programs(LINE_5)
    try:
        count, failures = prove(options.only, options.jobs)
    except Skipped as reason:
        print(f"NETWORKS SKIPPED: {reason}")
        return 0
    for failure in failures:
        print(failure, file=sys.stderr)
    word = "FAILED" if failures else "OK"
    print(f"NETWORKS {word} clients={count} networks={len(NETWORKS)} failed={len(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
