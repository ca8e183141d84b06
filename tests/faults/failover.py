"""A group with an elected master, under load and one fault after the other: `make failover`.

Three controllers, three brokers and a name server run as processes. Faults, hosts and timing come from a
seed. Each fault is healed before the next one, which starts once all three brokers are in sync again. At the
end every acknowledged message must have been read at the offset in its result, and the three logs must be
byte-identical. Prints a table by fault, and as the last line

    FAILOVER OK rounds=60 acknowledged=N lost=0 duplicated_offsets=0 two_masters=0 rto_killed_ms=P50/P99 ...

or FAILOVER FAILED with the findings, exit code 1, and keeps the directory with the logs.

RTO           the longest time without an acknowledged send, from the fault to the end of its round
rto_killed    the RTO of rounds in which the master was killed
rto_silent    the RTO of rounds in which a silence had to time out: of the master (SIGSTOP, its host or the
              port of its log cut), or of the leading controller that was killed with the master
full disks    each broker and each controller has a small file system of its own, which only root can mount
rolling restart  controllers, slaves and the master, which hands over and gets its role back, are stopped
              cleanly and restarted: as at a hand-over, no send may fail
linearizable  each queue must be explainable as one list that every send and every delivery met at one
              moment, across masters; contradictions are reported
stream        with --spark: a Spark stream reads the topic meanwhile. A line before the last one reports its
              rows, those lost or duplicated (none may be), and the time from each fault to the next batch
              with newer sends. Spark shares the processors with the group, so the RTO of such a run means
              little
java          with --java: a producer of each line of RocketMQ's Java clients sends meanwhile, one message
              after the other, and looks up routes every second. A round ends when they continue, too. Their
              promises are judged like those of the TandemMQ producer, and their sends count as acknowledged.
              A table and lines before the last one report for each client the time without sends, and the
              failed, lost and twice stored messages: a producer repeats a send without an answer, which may
              have been stored
two masters   two brokers that acknowledged in one term, or one that acknowledged a send which began after a
              newer term had acknowledged one
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import math
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from client_ledger import QUICK, ClientLedger, consuming
from elected_group import ROUND_S_MAX, ElectedGroup
from elected_hosts import ElectedHosts, Member
from java_senders import CLIENTS, OURS, POLL_S, JavaSend, JavaSender, body_of, client_of
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from spark_reader import END_S, START_S, SparkReader, StreamFindings, judge_stream

from interop.java_peers import missing_tools
from sim.linearizable import Append, Read, contradiction
from small_disk import MountRefused
from tandemmq.api.controller import apply_broker_id, find_leader
from tandemmq.client import Admin, Message, Producer, ProducerOptions
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.replica import EpochRange
from tandemmq.protocol.message_id import decode_message_id
from waits import until

TOPIC = "Failover"
QUEUE_COUNT = 4
SENDER_COUNT = 8
PAUSE_S = 0.01
"""The pause between the sends of one sender: the machine has other work."""
SEND_TIMEOUT_S = 15.0
CALM_ACKS = 30
"""The number of acknowledged sends between a complete group and the next fault."""
LASTS_S = 3.0, 5.0
"""The duration of silence: longer than the replacement of a master takes."""
DEAD_S = 0.5, 2.0
QUIET_S = 1.0
"""The time without an acknowledgement after which the disk counts as full."""
CLEAN_MS = 500
"""cleanResourceInterval: the interval at which a broker checks whether its disk is full."""
FILE_BYTES = 1 << 20
"""The size of a log file: the rest of it can still be written although the disk is full."""
FILLER_SIZE = 200
"""The length of an address that the controllers store until the last page of the log is full."""
SHOWN_MAX = 20
KILLED = "master killed"
HANDED_OVER = "hand-over"
ROLLED = "rolling restart"
PLANNED = (HANDED_OVER, ROLLED)
"""Planned faults: nothing is lost, so no send may fail."""
FULL_HANDED_OVER = "master's disk full, hand-over"
SILENT = ("master stopped (SIGSTOP)", "host cut", "port cut: log", "controller and master killed")


Harm = Callable[["Failover", int], Awaitable[str]]
"""Harms the group with this master and heals it; returns the name of the fault."""


class NoSuchFault(Exception):
    """No fault has the requested name; the text lists the possible ones."""


@dataclass(slots=True)
class Ack:
    """One acknowledged send, with times by the monotonic clock."""

    begun_s: float
    done_s: float
    host: str
    log_offset: int
    cause: str
    client: str = OURS


@dataclass(slots=True)
class Round:
    cause: str
    rto_ms: float
    failed_sends: int
    begun_s: float = 0.0
    ended_s: float = 0.0


@dataclass(slots=True)
class History:
    """The run as seen from outside."""

    ledger: ClientLedger = field(default_factory=ClientLedger)
    acks: list[Ack] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    cause: str = "start"
    failed: int = 0
    duplicated: list[str] = field(default_factory=list)
    begun_s: dict[int, float] = field(default_factory=dict)
    """The start of each send, by the number in its body, including sends without an answer."""
    faults: list[str] = field(default_factory=list)
    """Other faults: a group that is not complete in time, a process that ended by itself."""
    stream: StreamFindings | None = None
    """The findings of the stream, with `--spark`."""
    java_failed: list[tuple[str, float, str]] = field(default_factory=list)
    """With `--java`: client, time and reason of each failed send."""

    def record_ack(self, queue_id: int, queue_offset: int, body: bytes, ack: Ack) -> None:
        place = (TOPIC, queue_id, queue_offset)
        promised = self.ledger.promised
        if place in promised:
            self.duplicated.append(f"{place} was promised to {promised[place]!r} and {body!r}")
        promised[place] = body
        self.acks.append(ack)

    def record_java(self, sends: Iterable[JavaSend]) -> None:
        """Adds the sends of Java clients, once no round is in progress."""
        for send in sends:
            client = client_of(send.number)
            self.begun_s[send.number] = send.begun_s
            if send.done_s is None:
                continue
            cause = self.cause_at(send.done_s)
            if send.message_id:
                stored = decode_message_id(send.message_id)
                ack = Ack(send.begun_s, send.done_s, stored.ip, stored.log_offset, cause, client)
                self.record_ack(send.queue_id, send.queue_offset, body_of(send.number), ack)
            else:
                self.java_failed.append((client, send.done_s, send.reason))

    def cause_at(self, time_s: float) -> str:
        """Returns the fault of the round that was in progress, or had just ended."""
        begun = [one.cause for one in self.rounds if one.begun_s <= time_s]
        return begun[-1] if begun else "start"

    def longest_gap_ms(self, since_s: float, until_s: float, client: str = OURS) -> float:
        done = (ack.done_s for ack in self.acks if ack.client == client)
        times = [since_s, *sorted(time_s for time_s in done if since_s < time_s < until_s), until_s]
        return max(after - before for before, after in itertools.pairwise(times)) * 1000


class Failover:
    """One run."""

    def __init__(
        self,
        hosts: ElectedHosts,
        history: History,
        *,
        seed: int,
        only: str,
        stream_folder: Path | None = None,
        java_folder: Path | None = None,
    ) -> None:
        """`stream_folder`: a Spark stream reads the topic and keeps its checkpoint there; None: no stream.

        `java_folder`: the folder of Java producers that send, too; None: no Java producers.
        """
        self._hosts = hosts
        self._stream_folder = stream_folder
        self._java_folder = java_folder
        self._java: list[JavaSender] = []
        self._history = history
        self._chance = random.Random(seed)
        self._kinds = self.choose(only, with_disks=bool(hosts.disks))
        self._group = ElectedGroup(hosts)
        self._numbers = itertools.count()
        self._fillers = itertools.count()

    async def run(self, rounds: int, ends_at_s: float, on_round: Callable[[Round], None]) -> None:
        hosts, history = self._hosts, self._history
        await self._group.whole()
        async with Admin(hosts.name_server) as admin:
            await admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
        options = ProducerOptions(client=QUICK, timeout_s=SEND_TIMEOUT_S, compress_from_bytes=0)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(consuming(hosts.name_server, history.ledger, TOPIC))
            stream = None
            if self._stream_folder is not None:
                stream = SparkReader(hosts.name_server, TOPIC, self._stream_folder)
                stack.push_async_callback(asyncio.to_thread, stream.close)
            async with Producer("P", hosts.name_server, options=options) as producer:
                senders = [asyncio.create_task(self._send(producer)) for _ in range(SENDER_COUNT)]
                try:
                    if self._java_folder is not None:
                        await self._start_java(self._java_folder)
                    if stream is not None:
                        await until(partial(self._is_reading, stream), "the stream reads", START_S)
                    for harm in itertools.islice(self._harms(), rounds):
                        if time.monotonic() > ends_at_s:
                            break
                        history.rounds.append(await self._round(harm))
                        on_round(history.rounds[-1])
                finally:
                    for sender in senders:
                        sender.cancel()
                    await asyncio.gather(*senders, return_exceptions=True)
                    await self._end_java()
            await until(lambda: not history.ledger.missing, "everything acknowledged is read")
            if stream is not None:
                await self._end_stream(stream)

    async def _start_java(self, folder: Path) -> None:
        """Starts them; returns when all of them send."""
        for client in CLIENTS[1:]:
            home = folder / client.replace(" ", "-")
            self._java.append(
                await asyncio.to_thread(JavaSender, client, self._hosts.name_server, TOPIC, home)
            )
        await until(lambda: all(self._counts()), "Java's producers send", START_S)

    async def _end_java(self) -> None:
        for sender in self._java:
            await asyncio.to_thread(sender.close)
            self._history.record_java(sender.sends())

    @staticmethod
    async def _is_reading(stream: SparkReader) -> bool:
        stream.check_alive()
        return bool(stream.batches())

    async def _end_stream(self, stream: SparkReader) -> None:
        """Waits until everything promised should have been read, and judges the result."""
        history = self._history
        promised = {place[1:]: _number_in(body) for place, body in history.ledger.promised.items()}

        async def has_all() -> bool:
            stream.check_alive()
            await asyncio.sleep(0.5)  # the file is long
            return promised.keys() <= {row[:2] for batch in stream.batches() for row in batch.rows}

        with suppress(AssertionError):  # missing messages are reported below
            await until(has_all, "the stream has read everything", END_S)
        history.stream = judge_stream(
            stream.batches(),
            promised,
            begun_s=history.begun_s,
            faults_s=[one.begun_s for one in history.rounds],
        )
        history.stream.restarts = stream.failures()

    async def finish(self) -> list[EpochRange]:
        """Waits until all three have the same log, and stops the brokers; returns the terms of the log."""
        ranges: list[EpochRange] = []

        async def is_caught_up() -> bool:
            found = [await self._group.epochs(address) for address in self._hosts.addresses.values()]
            ranges[:] = found[0].epochs
            return len({epochs.max_log_offset for epochs in found}) == 1

        master = await self._group.whole()
        await until(is_caught_up, "three logs of one length", not_yet=(TandemError,))
        await asyncio.to_thread(self._hosts.stop_brokers, master)
        return ranges

    async def close(self) -> None:
        await self._group.close()

    async def _send(self, producer: Producer) -> None:
        """Sends messages. Never returns."""
        history = self._history
        while True:
            number = next(self._numbers)
            body = body_of(number)
            cause, begun_s = history.cause, time.monotonic()
            history.begun_s[number] = begun_s
            try:
                result = await producer.send(Message(topic=TOPIC, body=body))
            except TandemError as error:
                history.failed += 1
                history.ledger.statuses[f"{cause}: {type(error).__name__}: {error}"[:160]] += 1
                await asyncio.sleep(0.05)
                continue
            history.ledger.statuses[result.status.name] += 1
            if result.is_ok:
                stored = decode_message_id(result.message_id)
                ack = Ack(begun_s, time.monotonic(), stored.ip, stored.log_offset, cause)
                history.record_ack(result.queue.queue_id, result.queue_offset, body, ack)
            await asyncio.sleep(PAUSE_S)

    # Rounds.

    @classmethod
    def choose(cls, only: str, *, with_disks: bool) -> list[Harm]:
        """Returns the faults with `only` in their names. Raises NoSuchFault if there is none."""
        kinds: list[Harm] = [
            cls._kill_master,
            cls._stop_master,
            cls._cut_port,
            cls._cut_host,
            cls._kill_controller_and_master,
            cls._kill_slave,
            cls._hand_over,
            cls._restart_all,
        ]
        if with_disks:
            kinds += [cls._fill_disk, cls._fill_disk_and_hand_over, cls._fill_controllers_disk]
        chosen = [kind for kind in kinds if only in kind.__name__]
        if not chosen:
            known = ", ".join(kind.__name__.strip("_") for kind in kinds)
            raise NoSuchFault(f"no fault here has {only!r} in its name; there are {known}")
        return chosen

    def _harms(self) -> Iterator[Harm]:
        """Yields all kinds of faults, in a new order each time."""
        while True:
            yield from self._chance.sample(self._kinds, len(self._kinds))

    async def _round(self, harm: Harm) -> Round:
        history = self._history
        master = await self._calm()
        failed, begun_s = history.failed, time.monotonic()
        history.cause = harm.__name__
        cause = await harm(self, master)
        await self._group.whole()
        await self._calm()
        ended_s = time.monotonic()
        rto_ms = history.longest_gap_ms(begun_s, ended_s)
        for ack in reversed(history.acks):
            if ack.done_s < begun_s:
                break
            ack.cause = cause
        return Round(cause, rto_ms, history.failed - failed, begun_s, ended_s)

    async def _kill_master(self, master: int) -> str:
        broker = self._hosts.brokers[master]
        await asyncio.to_thread(broker.kill)
        await self._lasts(DEAD_S)
        await asyncio.to_thread(broker.start)
        return KILLED

    async def _stop_master(self, master: int) -> str:
        self._hosts.brokers[master].freeze()
        await self._lasts(LASTS_S)
        self._hosts.brokers[master].thaw()
        return "master stopped (SIGSTOP)"

    async def _cut_port(self, master: int) -> str:
        port = self._chance.choice(("client", "log", "controller"))
        await asyncio.to_thread(self._hosts.cut_port, master, port)
        await self._lasts(LASTS_S)
        await asyncio.to_thread(self._hosts.heal)
        return f"port cut: {port}"

    async def _cut_host(self, master: int) -> str:
        await asyncio.to_thread(self._hosts.cut, master)
        await self._lasts(LASTS_S)
        await asyncio.to_thread(self._hosts.heal)
        return "host cut"

    async def _kill_controller_and_master(self, master: int) -> str:
        leader = await self._group.leader()
        address = {address: number for number, address in self._hosts.controller_addresses.items()}[leader]
        killed = [self._hosts.controllers[address], self._hosts.brokers[master]]
        await asyncio.gather(*(asyncio.to_thread(one.kill) for one in killed))
        await self._lasts(LASTS_S)
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in killed))
        return "controller and master killed"

    async def _kill_slave(self, master: int) -> str:
        slave = self._chance.choice([number for number in sorted(self._hosts.brokers) if number != master])
        broker = self._hosts.brokers[slave]
        await asyncio.to_thread(broker.kill)
        await self._lasts(DEAD_S)
        await asyncio.to_thread(broker.start)
        return "slave killed"

    async def _hand_over(self, master: int) -> str:
        await self._group.hand_over_to(
            self._chance.choice([number for number in self._hosts.brokers if number != master])
        )
        return HANDED_OVER

    async def _restart_all(self, master: int) -> str:
        """Performs an update: every process is stopped cleanly and restarted, the master while another one
        leads; at the end it leads again.
        """
        hosts = self._hosts
        for _, controller in sorted(hosts.controllers.items()):
            await self._restart(controller)
            await until(self._controllers_agree, "all controllers know who leads", ROUND_S_MAX)
        slaves = [number for number in sorted(hosts.brokers) if number != master]
        for number in slaves:
            await self._restart(hosts.brokers[number])
            await self._group.whole()
        await self._group.hand_over_to(self._chance.choice(slaves))
        await self._group.whole()
        if self._java:
            await asyncio.sleep(2 * POLL_S)  # as an operator does: RocketMQ clients look up the route
        await self._restart(hosts.brokers[master])
        await self._group.whole()
        await self._group.hand_over_to(master)
        return ROLLED

    @staticmethod
    async def _restart(member: Member) -> None:
        await asyncio.to_thread(member.stop)
        await asyncio.to_thread(member.start)

    async def _controllers_agree(self) -> bool:
        try:
            leaders = [
                await find_leader(self._group.remoting, address, timeout_s=1.0)
                for address in self._hosts.controller_addresses.values()
            ]
        except TandemError:
            return False
        return len(set(leaders)) == 1

    async def _fill_disk(self, master: int) -> str:
        """Fills the master's disk: no send succeeds until there is room."""
        disk = self._hosts.disks[self._hosts.brokers[master].name]
        await asyncio.to_thread(disk.fill)
        await self._await_refusal()
        await self._lasts(DEAD_S)
        await asyncio.to_thread(disk.free)
        return "master's disk full"

    async def _fill_disk_and_hand_over(self, master: int) -> str:
        """Fills the master's disk and hands over, as an operator would: the others continue, and the full one
        rejoins them once it has room.
        """
        disk = self._hosts.disks[self._hosts.brokers[master].name]
        await asyncio.to_thread(disk.fill)
        await self._await_refusal()
        await self._hand_over(master)
        goal = len(self._history.acks) + CALM_ACKS
        await until(lambda: len(self._history.acks) >= goal, "the next master takes sends", ROUND_S_MAX)
        await asyncio.to_thread(disk.free)
        return FULL_HANDED_OVER

    async def _fill_controllers_disk(self, master: int) -> str:
        """Makes the leading controller end because it cannot store its log, and then kills the master."""
        by_address = {address: number for number, address in self._hosts.controller_addresses.items()}
        leader = await self._group.leader()
        controller, broker = self._hosts.controllers[by_address[leader]], self._hosts.brokers[master]
        disk = self._hosts.disks[controller.name]
        await asyncio.to_thread(disk.fill)

        async def has_ended() -> bool:
            if controller.is_alive:
                name = f"filler-{next(self._fillers)}"
                await apply_broker_id(
                    self._group.remoting, leader, "filler", name, 1, f"{'x' * FILLER_SIZE};1"
                )
            return not controller.is_alive

        await until(
            has_ended, f"{controller.name} ends with a full disk", ROUND_S_MAX, not_yet=(TandemError,)
        )
        await asyncio.gather(*(asyncio.to_thread(one.kill) for one in (controller, broker)))
        await self._lasts(LASTS_S)
        await asyncio.to_thread(disk.free)
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in (controller, broker)))
        return "controller's disk full, master killed"

    async def _await_refusal(self) -> None:
        """Waits until sends are refused."""
        acks = self._history.acks
        await until(lambda: time.monotonic() - acks[-1].done_s > QUIET_S, "sends are refused", ROUND_S_MAX)

    async def _lasts(self, bounds: tuple[float, float]) -> None:
        await asyncio.sleep(self._chance.uniform(*bounds))

    # States.

    async def _calm(self) -> int:
        """Waits for the same, and until sends of each client are acknowledged again."""
        goals = [count + CALM_ACKS for count in self._counts()]

        def is_calm() -> bool:
            return all(count >= goal for count, goal in zip(self._counts(), goals, strict=True))

        await until(is_calm, "sends are acknowledged", ROUND_S_MAX)
        return await self._group.whole()

    def _counts(self) -> list[int]:
        """Returns the number of acknowledged sends of each client."""
        return [len(self._history.acks), *(sender.acknowledged() for sender in self._java)]


def two_masters(acks: Iterable[Ack], ranges: Iterable[EpochRange]) -> list[str]:
    """Returns the acknowledgements by two brokers of which only one may have acknowledged."""
    ranges = sorted(ranges, key=lambda one: one.epoch)
    found: list[str] = []
    by_term: dict[int, list[Ack]] = defaultdict(list)
    for ack in acks:
        terms = [one.epoch for one in ranges if one.start <= ack.log_offset < one.end]
        if terms:
            by_term[terms[-1]].append(ack)
        else:
            found.append(f"{ack.host} acknowledged {ack.log_offset}, which is of no term")
    newest_s = math.inf
    for term in sorted(by_term, reverse=True):
        masters = {ack.host for ack in by_term[term]}
        if len(masters) > 1:
            found.append(f"in term {term} {' and '.join(sorted(masters))} acknowledged")
        found += [
            f"{ack.host} acknowledged {ack.log_offset} of term {term} when there was a newer one"
            for ack in by_term[term]
            if ack.begun_s > newest_s
        ]
        newest_s = min(newest_s, *(ack.done_s for ack in by_term[term]))
    return found


def not_linearizable(history: History) -> list[str]:
    """Returns the queues whose history is not linearizable, with the reasons."""
    appends: dict[int, list[Append]] = defaultdict(list)
    reads: dict[int, list[Read]] = defaultdict(list)
    promised = history.ledger.promised
    for (place, body), ack in zip(promised.items(), history.acks, strict=True):
        appends[place[1]].append(Append(_number_in(body), ack.begun_s, ack.done_s, place[2]))
    for place, body in history.ledger.delivered().items():
        number, at_s = _number_in(body), history.ledger.delivered_s[place]
        reads[place[1]].append(Read(place[2], (number,), 0.0, at_s))
        if promised.get(place) != body:
            # It got no answer, or a send had stored this before it was repeated.
            appends[place[1]].append(Append(number, history.begun_s[number]))
    found = {queue_id: contradiction(appends[queue_id], reads[queue_id]) for queue_id in sorted(reads)}
    return [f"queue {queue_id} is not linearizable: {why}" for queue_id, why in found.items() if why]


def _number_in(body: bytes) -> int:
    return int(body.split(b" ", 1)[0])


def different_logs(stores: list[Path]) -> list[str]:
    """Returns the log files in which the stores differ. A missing file counts as zeros."""
    names = sorted({path.name for store in stores for path in (store / "commitlog").iterdir()})
    found = []
    for name in names:
        contents = [
            path.read_bytes().rstrip(b"\0") if (path := store / "commitlog" / name).exists() else b""
            for store in stores
        ]
        if len(set(contents)) > 1:
            found.append(f"the log's file {name} differs: {[len(content) for content in contents]} bytes")
    return found


def share(values: list[float], part: float) -> int:
    """Returns the percentile by nearest rank; 0 for an empty list."""
    return round(sorted(values)[max(0, math.ceil(part * len(values)) - 1)]) if values else 0


def both(values: list[float]) -> str:
    return f"{share(values, 0.5)}/{share(values, 0.99)}"


def table_of(history: History, lost: Counter[str]) -> Table:
    table = Table("fault", "rounds", "RTO p50 ms", "RTO p99 ms", "failed sends", "lost")
    by_cause: dict[str, list[Round]] = defaultdict(list)
    for one in history.rounds:
        by_cause[one.cause].append(one)
    for cause, rounds in sorted(by_cause.items()):
        values = [one.rto_ms for one in rounds]
        numbers = (
            share(values, 0.5),
            share(values, 0.99),
            sum(one.failed_sends for one in rounds),
            lost[cause],
        )
        table.add_row(cause, str(len(rounds)), *(str(number) for number in numbers))
    return table


@dataclass(slots=True)
class ClientRounds:
    """The results of one client in the rounds of one fault."""

    rto_ms: list[float] = field(default_factory=list)
    failed: int = 0
    lost: int = 0
    stored_twice: int = 0


def by_client(history: History) -> dict[tuple[str, str], ClientRounds]:
    """Returns the results by client and fault; "start" is the time before the first fault."""
    found: dict[tuple[str, str], ClientRounds] = defaultdict(ClientRounds)
    for one in history.rounds:
        found[OURS, one.cause].failed += one.failed_sends
        for client in CLIENTS:
            gap_ms = history.longest_gap_ms(one.begun_s, one.ended_s, client)
            found[client, one.cause].rto_ms.append(gap_ms)
    for client, at_s, _ in history.java_failed:
        found[client, history.cause_at(at_s)].failed += 1
    delivered = history.ledger.delivered()
    for (place, body), ack in zip(history.ledger.promised.items(), history.acks, strict=False):
        if delivered.get(place) != body:
            found[ack.client, history.cause_at(ack.done_s)].lost += 1
    for number, count in Counter(_number_in(body) for body in delivered.values()).items():
        if count > 1:
            found[client_of(number), history.cause_at(history.begun_s[number])].stored_twice += count - 1
    return {key: found[key] for key in sorted(found, key=lambda key: (CLIENTS.index(key[0]), key[1]))}


def short_reason(reason: str) -> str:
    """Returns the reason without the package, the address of the broker and Java's advice."""
    words = re.sub(r" (BROKER: |See http|For more information).*|\d+(\.\d+){3}:\d+ ?", "", reason)
    return re.sub(r"^[\w.]+\.", "", words)


def clients_table(found: Mapping[tuple[str, str], ClientRounds]) -> Table:
    what = "rounds", "RTO p50 ms", "RTO p99 ms", "failed sends", "lost", "stored twice"
    table = Table("client", "fault", *what)
    for (client, cause), one in found.items():
        shares = share(one.rto_ms, 0.5), share(one.rto_ms, 0.99)
        numbers = len(one.rto_ms), *shares, one.failed, one.lost, one.stored_twice
        table.add_row(client, cause, *(str(number) for number in numbers))
    return table


def client_line(client: str, count: int, found: Mapping[tuple[str, str], ClientRounds]) -> str:
    """Returns the results of one client in all rounds together; `count`: the number of its acknowledged
    sends.
    """
    parts = {cause: part for (one, cause), part in found.items() if one == client}
    killed = [ms for cause, part in parts.items() if cause == KILLED for ms in part.rto_ms]
    silent = [ms for cause, part in parts.items() if cause in SILENT for ms in part.rto_ms]
    return (
        f"{client}: acknowledged={count} failed={sum(part.failed for part in parts.values())}"
        f" lost={sum(part.lost for part in parts.values())}"
        f" stored_twice={sum(part.stored_twice for part in parts.values())}"
        f" rto_killed_ms={both(killed)} rto_silent_ms={both(silent)}"
    )


def failover(
    root: Path,
    *,
    rounds: int,
    seed: int,
    seconds: float,
    only: str = "",
    has_stream: bool = False,
    has_java: bool = False,
) -> int:
    """Runs the failover test and returns the exit code. `only`: a word in the names of the faults;
    `has_stream`: a Spark stream reads the topic; `has_java`: Java producers send, too.

    Raises:  NoSuchFault if no fault that is possible here has that word.
    """
    Failover.choose(only, with_disks=True)
    history = History()
    ranges: list[EpochRange] = []
    ends_at_s = time.monotonic() + seconds

    async def run(hosts: ElectedHosts, on_round: Callable[[Round], None]) -> None:
        folder = root / "stream" if has_stream else None
        java_folder = root / "java" if has_java else None
        subject = Failover(
            hosts, history, seed=seed, only=only, stream_folder=folder, java_folder=java_folder
        )
        try:
            await subject.run(rounds, ends_at_s, on_round)
            ranges.extend(await subject.finish())
        finally:
            await subject.close()

    with shown(rounds) as on_round, harmed_hosts(root) as hosts:
        try:
            asyncio.run(run(hosts, on_round))
            history.faults += different_logs([hosts.store_path(number) for number in hosts.brokers])
        except (AssertionError, TandemError) as error:
            history.faults.append(f"after {len(history.rounds)} rounds, {history.cause}: {error}")
    return report(history, two_masters(history.acks, ranges) if ranges else [], has_java=has_java)


@contextmanager
def harmed_hosts(root: Path) -> Iterator[ElectedHosts]:
    """Starts hosts with disks that can be filled, if possible; otherwise prints a line that says so."""
    try:
        hosts = ElectedHosts(
            root, own_disks=True, cleanResourceInterval=CLEAN_MS, mappedFileSizeCommitLog=FILE_BYTES
        )
    except MountRefused as error:
        print(f"no round fills a disk: a small file system cannot be mounted ({error})")
        hosts = ElectedHosts(root)
    try:
        yield hosts
    finally:
        hosts.close()


def report(history: History, masters: list[str], *, has_java: bool = False) -> int:
    findings = history.ledger.check()
    cause_of_place = dict(zip(history.ledger.promised, history.acks, strict=False))
    lost = Counter(cause_of_place[place].cause for place in history.ledger.missing if place in cause_of_place)
    failed = sum(one.failed_sends for one in history.rounds if one.cause in PLANNED)
    wrong = [*history.faults, *history.duplicated, *findings.lost, *findings.skipped, *masters]
    if history.stream is not None:
        wrong += [*history.stream.lost, *history.stream.duplicated]
    if not history.duplicated:
        wrong += not_linearizable(history)
    if failed:
        wrong.append(f"{failed} sends failed at a planned hand-over or a rolling restart")
    java_failed = sum(history.cause_at(at_s) in PLANNED for _, at_s, _ in history.java_failed)
    if java_failed:
        wrong.append(f"{java_failed} sends of Java's clients failed at one of these")
    Console(width=None if sys.stdout.isatty() else 110).print(table_of(history, lost))
    if has_java:
        found = by_client(history)
        Console(width=None if sys.stdout.isatty() else 130).print(clients_table(found))
    print("sends", dict(sorted(history.ledger.statuses.items())))
    if has_java:
        reasons = Counter((client, short_reason(reason)) for client, _, reason in history.java_failed)
        for (client, reason), count in reasons.most_common(SHOWN_MAX):
            print(f"{count} sends of {client} failed: {reason}")
        counts = Counter(ack.client for ack in history.acks)
        print(*(client_line(client, counts[client], found) for client in CLIENTS), sep="\n")
    if history.stream is not None:
        print(history.stream.line())
        for line in history.stream.restarts[:SHOWN_MAX]:
            print(f"the stream began again: {line}")
    for line in wrong[:SHOWN_MAX]:
        print(line)
    print(
        f"FAILOVER {'FAILED' if wrong else 'OK'} rounds={len(history.rounds)}"
        f" acknowledged={len(history.acks)} lost={len(findings.lost)}"
        f" duplicated_offsets={len(history.duplicated)} two_masters={len(masters)}"
        f" rto_killed_ms={both([one.rto_ms for one in history.rounds if one.cause == KILLED])}"
        f" rto_silent_ms={both([one.rto_ms for one in history.rounds if one.cause in SILENT])}"
        f" handover_failed_sends={failed}"
    )
    return 1 if wrong else 0


@contextmanager
def shown(rounds: int) -> Iterator[Callable[[Round], None]]:
    """Shows a progress bar on a terminal, a line for each round elsewhere."""
    if not sys.stdout.isatty():
        yield lambda one: print(f"{one.cause}: {one.rto_ms:.0f} ms, {one.failed_sends} failed", flush=True)
        return
    with Progress(transient=True) as progress:
        task = progress.add_task("starting", total=rounds)
        yield lambda one: progress.update(task, advance=1, description=f"{one.cause}: {one.rto_ms:.0f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=30.0, help="no round begins later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a word in the names of the faults, such as disk")
    parser.add_argument("--spark", action="store_true", help="a Spark stream reads along")
    parser.add_argument("--java", action="store_true", help="Java producers of both lines send, too")
    options = parser.parse_args()
    if options.java and missing_tools():
        parser.error(f"--java needs a JDK and Maven: {', '.join(missing_tools())} missing")
    logging.basicConfig(level=logging.CRITICAL)  # every fault causes warnings in the clients
    root = Path(tempfile.mkdtemp(prefix="tandemmq-failover-"))
    try:
        seconds = options.minutes * 60
        code = failover(
            root,
            rounds=options.rounds,
            seed=options.seed,
            seconds=seconds,
            only=options.only,
            has_stream=options.spark,
            has_java=options.java,
        )
    except NoSuchFault as error:
        shutil.rmtree(root)
        parser.error(str(error))
    except BaseException:
        print(f"FAILOVER FAILED; logs are in {root}")
        raise
    if code:
        print(f"logs are in {root}")
    else:
        shutil.rmtree(root)
    return code


if __name__ == "__main__":
    sys.exit(main())
