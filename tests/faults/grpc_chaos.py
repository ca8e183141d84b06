"""Two proxies before an elected group, under gRPC load and one fault after the other:
`make grpc ARGS=--chaos`.

Three controllers, three brokers, a name server and two `tandemmq proxy` run as processes. Producers and push
consumers of the gRPC protocol act as the official clients do (`grpc_clients`). Each round kills a proxy or
the master with SIGKILL and starts it again, or hands the group over; the next round begins once three brokers
are in sync and every client continues. Prints a line per round, and as the last line

    GRPC CHAOS OK sent=N lost=0 order=0 repeats_after_ack=0 acks_elsewhere=N

or GRPC CHAOS FAILED with the findings, exit code 1, and keeps the directory with the logs.

sent               messages whose send was answered with OK, in a FIFO topic and in a normal one
lost               those that no consumer could acknowledge in the end
order              deliveries of a FIFO group while an earlier message of the message group was open
repeats_after_ack  deliveries after an acknowledgement was answered with OK. A message without one may come
                   again: its invisible time ends once its proxy no longer renews it
acks_elsewhere     acknowledgements that a proxy accepted for a message that the other one had delivered
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from elected_group import ROUND_S_MAX, ElectedGroup
from elected_hosts import ElectedHosts, elected_hosts
from grpc_clients import GrpcProducer, GrpcPushConsumer, close_all
from grpc_history import ChaosHistory, verdict

from ports import free_port
from tandemmq.api import broker_admin
from tandemmq.client import Admin
from tandemmq.errors import TandemError
from tandemmq.launcher import Server
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from waits import until

FIFO, NORMAL = "ChaosFifo", "ChaosNormal"
QUEUE_COUNT = 4
SENDER_COUNT = 8
"""The senders of each topic; half of them at each proxy."""
PAUSE_S = 0.05
"""The pause between the sends of one sender: the machine has other work."""
INVISIBLE_S = 10.0
"""The invisible time that the proxies give, and renew: messages of a killed proxy come again after it."""
SLOW_PART = 0.01
"""The part of the normal messages that take longer than the invisible time."""
CALM_EVENTS = 30
"""The sends and deliveries in each topic between a complete group and the next fault."""
DEAD_S = 0.5, 2.0
END_S = 90.0
ROUNDS = 6
SHOWN_MAX = 20

Harm = Callable[["GrpcChaos", int], Awaitable[str]]
"""Harms the processes while this broker is the master, and heals them; returns the name of the fault."""


@contextmanager
def two_proxies(root: Path, name_server: str) -> Iterator[list[Server]]:
    """Two proxies as processes, each with a port that it keeps."""
    settings = {"bindAddress": "127.0.0.1", "defaultInvisibleTimeMills": round(INVISIBLE_S * 1000)}
    proxies = []
    try:
        for number in range(2):
            own = {**settings, "proxyStorePath": root / f"proxy-{number}"}
            words = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
            command = ["proxy", "--namesrv", name_server, "--port", str(free_port()), *words]
            proxies.append(Server(f"proxy-{number}", command, root / f"proxy-{number}.log"))
            proxies[-1].start()
        yield proxies
    finally:
        for proxy in proxies:
            proxy.stop()


class GrpcChaos:
    """One run."""

    def __init__(
        self, hosts: ElectedHosts, proxies: list[Server], history: ChaosHistory, *, seed: int, only: str
    ) -> None:
        self._hosts = hosts
        self._proxies = proxies
        self._history = history
        self._chance = random.Random(seed)
        self._only = only
        self._group = ElectedGroup(hosts)
        self._producers: list[GrpcProducer] = []
        self._consumers: list[GrpcPushConsumer] = []
        self._kills = itertools.count()

    async def run(self, rounds: int, on_round: Callable[[str], None]) -> None:
        history = self._history
        try:
            await self._make_topics(await self._group.whole())
            await self._start_clients()
            for harm in itertools.islice(self._harms(), rounds):
                await self._round(harm, on_round)
            await close_all(self._producers)
            await until(lambda: not history.missing, "every sent message is acknowledged", END_S)
            await asyncio.sleep(INVISIBLE_S * 1.5)  # what has no accepted acknowledgement comes again
        finally:
            await close_all([*self._producers, *self._consumers])
            await self._group.close()

    async def _make_topics(self, master: int) -> None:
        async with Admin(self._hosts.name_server) as admin:
            for topic, kind in ((FIFO, "FIFO"), (NORMAL, "NORMAL")):
                await admin.create_topic(topic, queue_count=QUEUE_COUNT, attributes={"+message.type": kind})
        for topic in (FIFO, NORMAL):
            config = SubscriptionGroupConfig(name=f"{topic}-group", is_orderly=topic == FIFO)
            address = self._hosts.addresses[master]
            await broker_admin.create_group(self._group.remoting, address, config)

    async def _start_clients(self) -> None:
        addresses = [proxy.address for proxy in self._proxies]
        for topic, home in itertools.product((FIFO, NORMAL), (0, 1)):
            consumer = GrpcPushConsumer(
                f"consumer-{topic}-{home}",
                addresses,
                home,
                topic,
                self._history,
                chance=self._chance,
                invisible_s=INVISIBLE_S,
                slow_part=SLOW_PART,
            )
            self._consumers.append(consumer)
            await consumer.start()
        for topic, home in itertools.product((FIFO, NORMAL), (0, 1)):
            producer = GrpcProducer(f"producer-{topic}-{home}", addresses, home, topic, self._history)
            self._producers.append(producer)
            await producer.start()
            for number in range(home, SENDER_COUNT, 2):
                producer.send_as(f"{topic}-{number}", PAUSE_S)

    # Rounds.

    def _harms(self) -> Iterator[Harm]:
        """Yields all kinds of faults, in a new order each time."""
        kinds: list[Harm] = [GrpcChaos._kill_proxy, GrpcChaos._kill_master, GrpcChaos._hand_over]
        kinds = [kind for kind in kinds if self._only in kind.__name__]
        while True:
            yield from self._chance.sample(kinds, len(kinds))

    async def _round(self, harm: Harm, on_round: Callable[[str], None]) -> None:
        history = self._history
        master = await self._calm()
        sent, repeats, refused = len(history.sent), history.repeats, history.refused_early.total()
        begun_s = time.monotonic()
        cause = await harm(self, master)
        await self._calm()
        for client in (*self._producers, *self._consumers):
            client.use(client.home)  # as behind a load balancer that places new connections
        on_round(
            f"{cause}: {time.monotonic() - begun_s:.1f} s, {len(history.sent) - sent} sent,"
            f" {history.repeats - repeats} delivered again, {history.refused_early.total() - refused} refused"
        )

    async def _calm(self) -> int:
        """Waits until three brokers are in sync and every topic moves; returns the master's number."""
        master = await self._group.whole()
        goals = [count + CALM_EVENTS for count in self._counts()]

        def is_calm() -> bool:
            for proxy in self._proxies:
                proxy.check_alive()
            return all(count >= goal for count, goal in zip(self._counts(), goals, strict=True))

        await until(is_calm, "messages are sent and delivered in each topic", ROUND_S_MAX)
        return master

    def _counts(self) -> list[int]:
        """Returns the numbers of sends and of deliveries in each topic."""
        history = self._history
        return [count[topic] for topic in (FIFO, NORMAL) for count in (history.sends, history.deliveries)]

    async def _kill_proxy(self, master: int) -> str:
        number = next(self._kills) % 2
        proxy = self._proxies[number]
        await asyncio.to_thread(proxy.kill)
        await self._lasts()
        await asyncio.to_thread(proxy.start)
        return f"proxy-{number} killed"

    async def _kill_master(self, master: int) -> str:
        broker = self._hosts.brokers[master]
        await asyncio.to_thread(broker.kill)
        await self._lasts()
        await asyncio.to_thread(broker.start)
        return "master killed"

    async def _hand_over(self, master: int) -> str:
        others = [number for number in sorted(self._hosts.brokers) if number != master]
        await self._group.hand_over_to(self._chance.choice(others))
        return "hand-over"

    async def _lasts(self) -> None:
        await asyncio.sleep(self._chance.uniform(*DEAD_S))


def chaos(root: Path, *, rounds: int, seed: int, only: str = "") -> int:
    """Runs the proof and returns the exit code. `only`: a word in the names of the faults."""
    history = ChaosHistory(fifo_topics=frozenset({FIFO}))
    with elected_hosts(root) as hosts, two_proxies(root, hosts.name_server) as proxies:
        subject = GrpcChaos(hosts, proxies, history, seed=seed, only=only)
        try:
            asyncio.run(subject.run(rounds, partial(print, flush=True)))
        except (AssertionError, TandemError) as error:
            history.faults.append(str(error))
    return report(history)


def report(history: ChaosHistory) -> int:
    for text, count in sorted(history.errors.items()):
        print(f"seen by clients, and retried: {count} times {text}")
    print(
        f"{history.deliveries.total()} deliveries, {history.repeats} of them again;"
        f" {history.stored_twice} messages stored twice by one send;"
        f" acknowledgements refused within the invisible time: {dict(sorted(history.refused_early.items()))}"
    )
    findings = [
        *history.faults,
        *(f"{one} was never acknowledged" for one in history.missing),
        *history.order,
        *history.repeats_after_ack,
    ]
    for line in findings[:SHOWN_MAX]:
        print(line)
    is_ok, line = verdict(history)
    print(line)
    return 0 if is_ok else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chaos", action="store_true", help="the word by which make chooses this proof")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", choices=("", "proxy", "master", "hand"), help="one of the faults"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # every fault causes warnings in the clients
    root = Path(tempfile.mkdtemp(prefix="tandemmq-grpc-chaos-"))
    try:
        code = chaos(root, rounds=options.rounds, seed=options.seed, only=options.only)
    except BaseException:
        print(f"GRPC CHAOS FAILED; logs are in {root}")
        raise
    if code:
        print(f"logs are in {root}")
    else:
        shutil.rmtree(root)
    return code


if __name__ == "__main__":
    sys.exit(main())
