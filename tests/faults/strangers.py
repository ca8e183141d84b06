"""`make strangers`: hostile peers against an elected group with access control, while a producer sends.

Three brokers with access control, controllers with a shared secret and a name server run as processes that
may open 1,024 files. A signed producer sends all the time. Each attack runs in a process of its own, between
two turns without it, and targets every port. The conditions:

rate       the producer keeps 80 % of the rate of the turns during which the attack is stopped, and no
           acknowledgement arrives more than STALL_S_MAX after the previous one
sends      none is refused, and none fails
office     no election: the master stays the same, in the same term, from the start to the end
newcomer   a producer that connects during the attack gets its first send acknowledged
bounds     no server ends, exceeds its descriptors, or grows by more than GROWN_MIB_MAX
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from fault_cluster import NEXT, SMALL

from ports import free_port
from tandemmq.client import Admin, ClientOptions, Message, Producer, ProducerOptions
from tandemmq.errors import TandemError
from tandemmq.launcher import Server, write_properties
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FRAME_BYTES_MAX, encode_frame
from tandemmq.protocol.signature import Credentials
from waits import until

TOPIC = "Orders"
SENDER_COUNT = 8
PAUSE_S = 0.02
"""The pause between two sends of one sender: the rate falls if answers are late, and a stall is not made up
for.
"""
KEPT_MIN = 0.8
TURN_S = 1.5
TURNS = 3
"""The number of turns with the attack, and of turns without it in between: other load of the machine affects
both alike.
"""
STALL_S_MAX = 1.5
"""The longest time between two acknowledgements: a blocked loop would otherwise slow the next turn, too, and
go unnoticed.
"""
TRIES_MAX = 3
"""The number of tries for an attack that seems to slow the producer: the machine may have had other load."""
BEGUN = "connected"
"""The line that an attack's process prints after its first connection."""
BEGIN_S_MAX = 20.0
"""The time that an attack's process may take to start and connect."""
NEWCOMER_S_MAX = 20.0
LIMIT = 1_024
GROWN_MIB_MAX = 300
IDLE_COUNT = 1_100
IDLE_PAUSE_S = 0.004
"""The pause between two connections to one port: this attack is about their number; a storm of them is
another one.
"""
PIECE_BYTES = 1 << 18
"""The size of an attacker's write: unsent bytes are copied at each step, and that is not to be measured."""
APP = Credentials("shop-app", "shop-secret")
ADMIN = Credentials("operator", "operator-secret")
INNER = {"accessKey": "inner", "secretKey": "inner-secret"}
SECRET = "controllers-secret-1"
RULES = {
    "accounts": [
        {
            "accessKey": APP.access_key,
            "secretKey": APP.secret_key,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": [f"{TOPIC}=PUB|SUB"],
        },
        {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key, "admin": True},
    ]
}

Place = tuple[str, int]


# The group.


class Group:
    """The servers. The constructor starts them; `close` leaves nothing running."""

    def __init__(self, root: Path, *, controller_count: int) -> None:
        self._root = root
        (root / "rules").mkdir()
        (root / "rules" / "plain_acl.yml").write_text(yaml.safe_dump(RULES))
        ports = {f"n{number}": free_port() for number in range(controller_count)}
        peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in ports.items())
        self.name_server = Server(
            "namesrv", self._command("namesrv", {"listenPort": 0}), root / "namesrv.log"
        )
        self.controllers = [
            self._server(
                f"controller-{name}",
                "controller",
                {
                    "controllerDLegerPeers": peers,
                    "controllerDLegerSelfId": name,
                    "controllerStorePath": root / f"controller-{name}",
                    "controllerSharedSecret": SECRET,
                },
            )
            for name in ports
        ]
        self.brokers: list[Server] = []
        self._limit(self.name_server)
        try:
            self.name_server.start()
            for server in self.controllers:
                server.start()
            addresses = ";".join(f"127.0.0.1:{port}" for port in ports.values())
            self.brokers += [self._broker(number, addresses) for number in range(1, 4)]
            for server in self.brokers:
                server.start()
        except BaseException:
            self.close()
            raise

    @property
    def servers(self) -> list[Server]:
        return [self.name_server, *self.controllers, *self.brokers]

    def _broker(self, number: int, controllers: str) -> Server:
        host = f"127.0.1.{number}"
        port = free_port(host, NEXT)
        return self._server(
            f"broker-{number}",
            "broker",
            {
                **SMALL,
                "bindAddress": host,
                "brokerIP1": host,
                "brokerName": "shop",
                "listenPort": port,
                "haListenPort": port + 1,
                "namesrvAddr": self.name_server.address,
                "storePathRootDir": self._root / f"broker-{number}",
                "enableControllerMode": "true",
                "controllerAddr": controllers,
                "controllerSharedSecret": SECRET,
                "allAckInSyncStateSet": "true",
                "aclEnable": "true",
                "aclConfigDir": self._root / "rules",
                "innerClientAuthenticationCredentials": json.dumps(INNER),
            },
        )

    def _server(self, name: str, command: str, settings: dict[str, object]) -> Server:
        server = Server(name, self._command(command, settings, name), self._root / f"{name}.log")
        self._limit(server)
        return server

    def _command(self, command: str, settings: dict[str, object], name: str = "namesrv") -> list[str]:
        settings = {"bindAddress": "127.0.0.1", **settings}
        if command == "namesrv":
            settings["kvConfigPath"] = self._root / "kv.json"
        return [command, "-c", str(write_properties(self._root / f"{name}.conf", settings))]

    def _limit(self, server: Server) -> None:
        server._command = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *server._command]

    def role_changes(self) -> int:
        """Returns the number of role changes of brokers since the start."""
        return sum(
            path.read_text(encoding="utf-8", errors="replace").count(" broker_role.changed ")
            for path in self._root.glob("broker-*.log")
        )

    def fences(self) -> int:
        """Returns the number of times that a master had neither a lease nor promises."""
        return sum(
            path.read_text(encoding="utf-8", errors="replace").count(" broker.fenced ")
            for path in self._root.glob("broker-*.log")
        )

    def close(self) -> None:
        for server in reversed(self.servers):
            server.stop()


@contextmanager
def running_group(root: Path, controller_count: int) -> Iterator[Group]:
    group = Group(root, controller_count=controller_count)
    try:
        yield group
    finally:
        group.close()


def resident_mib(server: Server) -> float:
    with open(f"/proc/{server.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def descriptor_count(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


# Attacks: each gets its targets and runs until it is ended.


@dataclass(frozen=True, slots=True)
class Targets:
    """The addresses of the servers."""

    brokers: Sequence[Place]
    controllers: Sequence[Place]
    name_server: Place

    @property
    def all(self) -> list[Place]:
        return [*self.brokers, *self.others]

    @property
    def others(self) -> list[Place]:
        """The servers that are attacked less: the name server has no accounts, and the machine may be
        small.
        """
        return [*self.controllers, self.name_server]


def frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def plain(code: int, body: bytes = b"", **fields: object) -> bytes:
    """Returns an unsigned request."""
    return encode_frame(Command.request(code, body=body, fields={k: str(v) for k, v in fields.items()}))


def signed(code: int, body: bytes = b"", **fields: object) -> bytes:
    """Returns a request of an account that may send to TOPIC and nothing else."""
    command = Command.request(code, body=body, fields={k: str(v) for k, v in fields.items()})
    APP.sign(command)
    return encode_frame(command)


@cache
def say_begun() -> None:
    """Tells the parent once that the attack is in progress."""
    print(BEGUN, flush=True)


async def dial(host: str, port: int, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to a target; every attack does it by this function."""
    connected = await asyncio.open_connection(host, port, **options)
    say_begun()
    return connected


async def repeat(places: Sequence[Place], data: Sequence[bytes], *, pause_s: float) -> None:
    """Writes these frames in turn to each place, with a pause after each; answers are read and dropped."""
    await asyncio.gather(*(_repeat(place, data, pause_s) for place in places))


async def _repeat(place: Place, data: Sequence[bytes], pause_s: float) -> None:
    for one in itertools.cycle(data):
        with suppress(OSError):
            reader, writer = await dial(*place)
            dropping = asyncio.ensure_future(_drop(reader))
            try:
                while not reader.at_eof() and not writer.is_closing():
                    for begin in range(0, len(one), PIECE_BYTES):
                        writer.write(one[begin : begin + PIECE_BYTES])
                        await writer.drain()
                    await asyncio.sleep(pause_s)
            finally:
                dropping.cancel()
                writer.close()
        await asyncio.sleep(pause_s)


async def _drop(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(65_536):
            pass


def loose_list(size: int) -> bytes:
    return b'{"code":1,"x":[' + b"1L," * (size // 3) + b"]}"


async def loose_headers(targets: Targets) -> None:
    """Headers of 0.8 and 1.6 MB in FastJSON's dialect."""
    await repeat(targets.all, [frame(loose_list(800_000)), frame(loose_list(1_600_000))], pause_s=0.5)


async def loose_header_flood(targets: Targets) -> None:
    """Headers just below the bounds of the tolerant reader: as many as the brokers have time for."""
    data = frame(b'{code:1,"x":[' + b"1L," * 950 + b"]}")
    await asyncio.gather(
        repeat(targets.brokers, [data * 8], pause_s=0.1),
        repeat(targets.others, [data], pause_s=0.2),
    )


def bomb() -> bytes:
    levels = [f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 24)]
    return ('{"a0":[1],' + ",".join(levels) + "}").encode()


async def references(targets: Targets) -> None:
    """`$ref` that would expand to millions of values, in headers and bodies."""
    text = bomb()
    header = b'{"code":34,"extFields":' + text + b"}"
    data = [
        frame(header) * 2 + plain(RequestCode.HEART_BEAT, text) + plain(RequestCode.REGISTER_BROKER, text)
    ]
    await repeat(targets.all, data, pause_s=0.1)


async def loose_bodies(targets: Targets) -> None:
    """16 MB of FastJSON's dialect in a body, signed and unsigned."""
    body = loose_list(FRAME_BYTES_MAX - 2_000)
    data = [plain(RequestCode.HEART_BEAT, body), signed(RequestCode.HEART_BEAT, body)]
    await repeat([*targets.brokers, targets.name_server], data, pause_s=4.0)


async def sql_heartbeats(targets: Targets) -> None:
    """Heartbeats of an account, with 2 MB of new SQL92 expressions each."""
    numbers = itertools.count()

    def heartbeat() -> bytes:
        subscriptions = [
            {
                "topic": f"T{n}",
                "subString": " OR ".join(f"a{n} = '{next(numbers)}'" for _ in range(400)),
                "expressionType": "SQL92",
                "subVersion": 1,
            }
            for n in range(200)
        ]
        group = {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        return json.dumps({"clientID": "c", "consumerDataSet": [group], "producerDataSet": []}).encode()

    data = [signed(RequestCode.HEART_BEAT, heartbeat()) for _ in range(4)]
    await repeat(targets.brokers, data, pause_s=1.0)


async def idle_connections(targets: Targets) -> None:
    """More connections to each port than a process may open files, without any traffic."""
    kept: list[asyncio.StreamWriter] = []

    async def open_some(place: Place) -> None:
        for _ in range(IDLE_COUNT):
            with suppress(OSError):
                kept.append((await dial(*place))[1])
            await asyncio.sleep(IDLE_PAUSE_S)

    replication = [(host, port + 1) for host, port in targets.brokers]
    await asyncio.gather(*map(open_some, [*targets.all, *replication]))
    await asyncio.Event().wait()


async def slow_readers(targets: Targets) -> None:
    """Many requests, of which no answer is read."""
    data = plain(RequestCode.GET_BROKER_CLUSTER_INFO) * 100

    async def ask(place: Place, pause_s: float) -> None:
        with suppress(OSError):
            _, writer = await dial(*place, limit=1_024)
            while True:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(pause_s)

    asking = [ask(place, 0.1) for place in targets.brokers for _ in range(3)]
    asking += [ask(place, 0.5) for place in targets.others]
    await asyncio.gather(*asking)
    await asyncio.Event().wait()


async def half_frames(targets: Targets) -> None:
    """The beginning of a frame of 16 MB, without an end."""
    head = struct.pack(">iI", FRAME_BYTES_MAX - 8, 100) + bytes(1 << 20)

    async def begin(place: Place) -> None:
        with suppress(OSError):
            _, writer = await dial(*place)
            writer.write(head)
            await writer.drain()
            await asyncio.sleep(3600)

    begun = [begin(place) for place in targets.brokers for _ in range(70)]
    begun += [begin(place) for place in targets.others for _ in range(8)]
    await asyncio.gather(*begun)
    await asyncio.Event().wait()


async def connect_storm(targets: Targets) -> None:
    """Connections that are closed as soon as they are open."""

    async def knock(place: Place) -> None:
        while True:
            with suppress(OSError):
                (await dial(*place))[1].transport.abort()
            await asyncio.sleep(0.02)

    await asyncio.gather(*(knock(place) for place in targets.all))


async def unsigned_requests(targets: Targets) -> None:
    """Requests of administrators, brokers and controllers, sent by a stranger."""
    to_brokers = [
        plain(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=0\n"),
        plain(RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC),
        plain(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, masterEpoch=1 << 20, masterBrokerId=7),
        plain(RequestCode.SEND_MESSAGE, b"x", topic=TOPIC, queueId=0),
    ]
    to_controllers = [
        plain(RequestCode.UPDATE_CONTROLLER_CONFIG, b"enableElectUncleanMaster=true\n"),
        plain(RequestCode.CLEAN_BROKER_DATA, clusterName="DefaultCluster", brokerName="shop"),
        plain(
            RequestCode.CONTROLLER_ELECT_MASTER, clusterName="DefaultCluster", brokerName="shop", brokerId=2
        ),
        plain(
            RequestCode.BROKER_HEARTBEAT, clusterName="DefaultCluster", brokerName="shop", brokerId=1, epoch=9
        ),
    ]
    await asyncio.gather(
        repeat(targets.brokers, [b"".join(to_brokers * 5)], pause_s=0.05),
        repeat(targets.controllers, [b"".join(to_controllers * 5)], pause_s=0.05),
    )


async def made_up_topics(targets: Targets) -> None:
    """Sends to topics that do not exist, by an account without the permission, and unsigned."""
    names = [f"made-up-{os.getpid()}-{number}" for number in range(50)]
    data = [
        b"".join(
            make(
                RequestCode.SEND_MESSAGE,
                b"x",
                topic=name,
                defaultTopic="TBW102",
                queueId=0,
                producerGroup="p",
            )
            for name in names
            for make in (plain, signed)
        )
    ]
    await repeat(targets.brokers, data, pause_s=0.2)


Attack = Callable[[Targets], Awaitable[None]]
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        loose_headers,
        loose_header_flood,
        references,
        loose_bodies,
        sql_heartbeats,
        idle_connections,
        slow_readers,
        half_frames,
        connect_storm,
        unsigned_requests,
        made_up_topics,
    )
}


@contextmanager
def attacking(name: str, targets: Targets, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs an attack in a process of its own."""
    places = json.dumps([targets.brokers, targets.controllers, targets.name_server])
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "--attack", name, "--places", places],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    try:
        yield process
        if process.poll() is not None:
            raise AssertionError(f"the attack {name} ended by itself, see {log_path}")
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def attack_until_cancelled(name: str, places: str) -> None:
    """The main function of an attack's process."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    brokers, controllers, name_server = json.loads(places)
    targets = Targets([(h, p) for h, p in brokers], [(h, p) for h, p in controllers], tuple(name_server))
    asyncio.run(ATTACKS[name](targets))


# The load.


@dataclass(slots=True)
class Load:
    """A signed producer that sends all the time."""

    name_server: str
    acked: int = 0
    longest_stall_s: float = 0.0
    _acked_s: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def producer(self, group: str) -> Producer:
        client = ClientOptions(access_key=APP.access_key, secret_key=APP.secret_key, call_timeout_s=10.0)
        return Producer(
            group, self.name_server, options=ProducerOptions(client=client, timeout_s=10.0, retry_count_max=0)
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.producer("load") as producer:
            self._tasks += [asyncio.ensure_future(self._send(producer)) for _ in range(SENDER_COUNT)]
            try:
                yield
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, producer: Producer) -> None:
        """Sends messages. Never returns."""
        while True:
            try:
                result = await producer.send(Message(topic=TOPIC, body=b"x" * 100))
            except TandemError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                if result.is_ok:
                    now_s = time.monotonic()
                    self.longest_stall_s = max(self.longest_stall_s, now_s - self._acked_s)
                    self._acked_s = now_s
                    self.acked += 1
                else:
                    self.failures.append(result.status.name)
            await asyncio.sleep(PAUSE_S)

    async def rate(self) -> float:
        """Returns the acknowledged sends per second over one turn."""
        begun, begun_s = self.acked, time.monotonic()
        await asyncio.sleep(TURN_S)
        return (self.acked - begun) / (time.monotonic() - begun_s)

    async def newcomer_s(self) -> float:
        """Returns the time that a new producer takes from its start to its first acknowledgement."""
        begun_s = time.monotonic()
        async with asyncio.timeout(NEWCOMER_S_MAX), self.producer("newcomer") as producer:
            result = await producer.send(Message(topic=TOPIC, body=b"new"))
            if not result.is_ok:
                self.failures.append(f"newcomer: {result.status.name}")
        return time.monotonic() - begun_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one attack."""

    name: str
    kept: float
    rate: float
    stall_s: float
    newcomer_s: float
    grown_mib: float
    descriptors: int

    @property
    def faults(self) -> list[str]:
        """Returns the violated conditions."""
        found = []
        if self.kept < KEPT_MIN:
            found.append(f"{self.name}: the producer kept {self.kept:.0%} of its rate")
        if self.stall_s > STALL_S_MAX:
            found.append(f"{self.name}: nothing was acknowledged for {self.stall_s:.1f} s")
        if self.newcomer_s > NEWCOMER_S_MAX:
            found.append(f"{self.name}: a new producer was not served")
        if self.grown_mib > GROWN_MIB_MAX:
            found.append(f"{self.name}: a server grew by {self.grown_mib:.0f} MiB")
        if self.descriptors > LIMIT:
            found.append(f"{self.name}: a server has {self.descriptors} descriptors")
        return found

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rate:.0f} sends/s, {self.kept:.0%} kept, longest stall {self.stall_s:.1f} s,"
            f" a newcomer takes {self.newcomer_s:.1f} s, grown {self.grown_mib:.0f} MiB,"
            f" {self.descriptors} descriptors"
        )


class Strangers:
    """One run: the attacks in turn, and their results."""

    def __init__(self, root: Path, group: Group) -> None:
        self.outcomes: list[Outcome] = []
        self.elections = 0
        self.load = Load(group.name_server.address)
        self._root = root
        self._group = group
        self._targets = Targets(
            [place_of(server) for server in group.brokers],
            [place_of(server) for server in group.controllers],
            place_of(group.name_server),
        )

    @property
    def faults(self) -> list[str]:
        found = [fault for outcome in self.outcomes for fault in outcome.faults]
        if self.elections:
            found.append(f"brokers changed their role {self.elections} times")
        return found + [f"a send failed: {failure}" for failure in self.load.failures[:10]]

    async def run(self, names: Sequence[str]) -> None:
        group, load = self._group, self.load
        await self._make_topic()
        async with load.running():
            await until(lambda: load.acked > 50, "the load is acknowledged", 60)
            await load.rate()
            load.failures.clear()  # from before the group was complete
            begun = group.role_changes()
            for name in names:
                for number in range(TRIES_MAX):
                    outcome = await self._attack(name)
                    if not outcome.faults or number == TRIES_MAX - 1:
                        break
                self.outcomes.append(outcome)
                print(outcome, flush=True)
                for server in group.servers:
                    server.check_alive()
            self.elections = group.role_changes() - begun

    async def _make_topic(self) -> None:
        client = ClientOptions(access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)
        async with Admin(self._group.name_server.address, options=client) as admin:

            async def is_made() -> bool:
                await admin.create_topic(TOPIC, queue_count=4)
                return True

            await until(is_made, "the topic is made", 60, not_yet=(TandemError,))

    async def _attack(self, name: str) -> Outcome:
        """Measures the rate in turns with the attack, and in turns during which it is stopped."""
        group, load = self._group, self.load
        resident = {server.name: resident_mib(server) for server in group.servers}
        load.longest_stall_s = 0.0
        rates, quiet_rates = [], []
        with attacking(name, self._targets, self._root / "attacks.log") as process:
            assert process.stdout is not None
            line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), BEGIN_S_MAX)
            assert line.decode().strip() == BEGUN, f"the attack {name} has not begun: {line!r}"
            newcomer = asyncio.ensure_future(load.newcomer_s())
            for _ in range(TURNS):
                rates.append(await load.rate())
                process.send_signal(signal.SIGSTOP)
                quiet_rates.append(await load.rate())
                process.send_signal(signal.SIGCONT)
            try:
                newcomer_s = await newcomer
            except (TandemError, TimeoutError):
                newcomer_s = math.inf
            descriptors = max(map(descriptor_count, group.servers))
            grown = max(resident_mib(server) - resident[server.name] for server in group.servers)
        quiet = mean(quiet_rates)
        kept = mean(rates) / quiet if quiet else 0.0
        return Outcome(name, kept, mean(rates), load.longest_stall_s, newcomer_s, grown, descriptors)


def place_of(server: Server) -> Place:
    host, _, port = server.address.rpartition(":")
    return host, int(port)


def strangers(root: Path, *, names: Sequence[str], controller_count: int) -> int:
    """Runs the attacks, prints a line for each and the verdict, and returns the exit code."""
    with running_group(root, controller_count) as group:
        one = Strangers(root, group)
        broken: list[str] = []
        try:
            asyncio.run(one.run(names))
        except (TandemError, AssertionError) as error:  # a server has ended, or nothing is acknowledged
            broken.append(f"{type(error).__name__}: {error}")
        print(f"masters without lease and promises for a moment: {group.fences()}")
    faults = broken + one.faults
    for fault in faults:
        print(fault)
    print(
        f"STRANGERS {'FAILED' if faults else 'OK'} attacks={len(one.outcomes)} elections={one.elections}"
        f" refused_sends={len(one.load.failures)}"
    )
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"a word in the name of an attack: {', '.join(ATTACKS)}")
    parser.add_argument("--controllers", type=int, default=3, choices=(1, 3))
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--places", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        attack_until_cancelled(options.attack, options.places)
        return 0
    names = [name for name in ATTACKS if options.only in name]
    if not names:
        parser.error(f"no attack has {options.only!r} in its name; there are {', '.join(ATTACKS)}")
    logging.basicConfig(level=logging.CRITICAL)
    root = Path(tempfile.mkdtemp(prefix="tandemmq-strangers-"))
    with ExitStack() as stack:
        stack.callback(lambda: print(f"logs are in {root}"))
        code = strangers(root, names=names, controller_count=options.controllers)
        if code == 0:
            stack.pop_all()
            shutil.rmtree(root)
    return code


if __name__ == "__main__":
    sys.exit(main())
