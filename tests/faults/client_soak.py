"""Millions of messages through one push consumer whose connections break: `make client-soak`.

Another process publishes numbers. The consumer's connections are cut many times, and some of these times the
broker is killed and restarted; some messages fail once and are delivered again as retries. The resources of
the consumer's process must not grow, and none may be left at the end. At each reconnect another topic appears
or grows under running consumers of every kind, none of which may skip a message (`growing_topics.py`):

    CLIENT SOAK OK messages=N rate=N reconnects=N duplicates=N in_new_queues=N memory=1.00 tasks=0 sockets=0
        files=0 threads=0

on one line, or CLIENT SOAK FAILED, exit code 1. `memory`: the private memory of the process in the last
fifth of the run, relative to the third fifth. The topics have all their queues after a quarter of the run,
because each queue costs each consumer a reader.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from growing_topics import STEPS, GrowingTopics, growing_topics

from bench.processes import HOST, private_bytes
from ports import free_port
from tandemmq.client import (
    Admin,
    BlockingProducer,
    ClientOptions,
    ConsumeResult,
    Message,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.client.producer.producer import Outcome
from tandemmq.errors import TandemError
from tandemmq.launcher import Server, stopping, write_properties
from waits import until

TOPIC, GROUP = "Soak", "soak"
QUEUE_COUNT = 4
CHUNK = 10_000
AHEAD_MAX = 200_000
"""The most messages that are published and not handled."""
RECONNECTS = 40
"""The number of reconnects in a whole run."""
KILL_EVERY = 4
"""Every Nth reconnect is a kill of the broker."""
GROWTH_PART = 4
"""The topics grow in the first of this many parts of the reconnects."""
FAIL_EVERY = 5_000
"""Every Nth message fails once."""
SAMPLES = 100
GROWTH_MAX = 1.05
IDLE_S_MAX = 120.0
"""The time without any message after which something is stuck."""
CLIENT = ClientOptions(heartbeat_s=5.0, route_refresh_s=1.0)


class Servers:
    """A name server and a broker as processes; the broker keeps its address when it is killed."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        command = ["namesrv", "--set", "listenPort=0", "--set", f"bindAddress={HOST}"]
        name_server = Server("name server", command, root / "namesrv.log")
        stack.enter_context(stopping([name_server]))
        self.name_server = name_server.start()
        settings = {
            "namesrvAddr": self.name_server,
            "brokerName": "soak",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": free_port(HOST, (-2, 1)),
            "storePathRootDir": root / "store",
        }
        conf = write_properties(root / "broker.conf", settings)
        self.broker = Server("broker", ["broker", "-c", str(conf)], root / "broker.log")
        stack.enter_context(stopping([self.broker]))
        self.broker.start()

    def restart_broker(self) -> None:
        """Kills and restarts the broker, as after a crash."""
        self.broker.kill()
        self.broker.start()


class Publisher:
    """A process that publishes numbers on request, so that its memory does not count here."""

    def __init__(self, name_server: str) -> None:
        command = [sys.executable, __file__, "--publish", name_server]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        self.asked = 0

    def ask(self, end: int) -> None:
        """Publishes the numbers below this one, too."""
        assert self._process.stdin is not None
        self.check_alive()
        self._process.stdin.write(b"%d %d\n" % (self.asked, end))
        self._process.stdin.flush()
        self.asked = end

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"the publisher ended with {self._process.returncode}")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def publish(name_server: str) -> None:
    """Runs the publisher's process: a line is a range of numbers. Messages that were not stored are sent
    again.
    """
    options = ProducerOptions(client=CLIENT, timeout_s=30.0)
    with BlockingProducer("soak-publisher", name_server, options=options) as producer:
        for line in sys.stdin:
            first, end = map(int, line.split())
            unsent = [Message(topic=TOPIC, body=b"%d" % number) for number in range(first, end)]
            while unsent:
                failed: list[Message] = []

                def note(message: Message, outcome: Outcome, failed: list[Message] = failed) -> None:
                    if isinstance(outcome, TandemError):
                        failed.append(message)

                producer.send_many(unsent, on_result=note, stop_on_error=False)
                unsent = failed


@dataclass
class Handled:
    """The numbers that the consumer has handled; its size is constant."""

    total: int
    seen: bytearray = field(init=False)
    count: int = 0
    duplicates: int = 0

    def __post_init__(self) -> None:
        self.seen = bytearray(self.total)

    def handle(self, message: ReceivedMessage) -> ConsumeResult:
        number = int(message.body)
        if number % FAIL_EVERY == 0 and message.retry_count == 0:
            return ConsumeResult.RETRY
        if self.seen[number]:
            self.duplicates += 1
        else:
            self.seen[number] = 1
            self.count += 1
        return ConsumeResult.SUCCESS


class Held(NamedTuple):
    """The open descriptors of this process, and the client's threads."""

    sockets: set[str]
    files: set[str]
    threads: set[str]

    @classmethod
    def now(cls) -> Held:
        links = {link for _, link in _descriptors()}
        sockets = {link for link in links if link.startswith("socket:")}
        files = {link for link in links if link.startswith("/")}
        threads = {one.name for one in threading.enumerate() if one.name.startswith("tandemmq-")}
        return cls(sockets, files, threads)

    def since(self, before: Held) -> dict[str, int]:
        """Returns the numbers of descriptors and threads that exist now and did not before."""
        pairs = zip(self._fields, self, before, strict=True)
        return {name: len(now - then) for name, now, then in pairs}


def _descriptors() -> Iterator[tuple[int, str]]:
    for entry in os.listdir("/proc/self/fd"):
        try:
            yield int(entry), os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue  # the descriptor of the listing itself


def cut_connections() -> int:
    """Ends every TCP connection of this process, as a network would; returns their number."""
    count = 0
    for descriptor, link in list(_descriptors()):
        if not link.startswith("socket:"):
            continue
        with socket.socket(fileno=os.dup(descriptor)) as one:
            try:
                one.getpeername()
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    one.shutdown(socket.SHUT_RDWR)
                    count += 1
            except OSError:
                continue
    return count


async def consume(
    servers: Servers,
    publisher: Publisher,
    handled: Handled,
    growing: GrowingTopics,
    *,
    steps: int,
    reconnects: int,
    threads: bool,
) -> list[int]:
    """Handles all numbers while connections break, and lets the topics grow by `steps` at each reconnect;
    returns samples of the process's private memory.
    """

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        return handled.handle(message)

    lock = threading.Lock()

    def handle_in_thread(message: ReceivedMessage) -> ConsumeResult:
        with lock:
            return handled.handle(message)

    options = PushOptions(client=CLIENT, start_from=StartFrom.FIRST, retry_delay_level=1, commit_s=1.0)
    handler: Callable[[ReceivedMessage], object | Awaitable[object]] = handle_in_thread if threads else handle
    consumer = PushConsumer(GROUP, servers.name_server, handler, options=options)
    consumer.subscribe(TOPIC)
    memory: list[int] = []
    done = 0
    last_count, last_s = 0, time.monotonic()
    async with Admin(servers.name_server) as admin, consumer:
        while handled.count < handled.total:
            await asyncio.sleep(0.05)
            if handled.count > last_count:
                last_count, last_s = handled.count, time.monotonic()
            elif time.monotonic() - last_s > IDLE_S_MAX:
                raise AssertionError(f"no message for {IDLE_S_MAX:g} s; {handled.count} are handled")
            publisher.check_alive()
            while publisher.asked < min(handled.total, handled.count + AHEAD_MAX):
                publisher.ask(min(publisher.asked + CHUNK, handled.total))
            if handled.count * SAMPLES >= len(memory) * handled.total:
                memory.append(private_bytes(os.getpid()))
            if handled.count * reconnects >= (done + 1) * handled.total:
                done += 1
                growth = asyncio.create_task(growing.grow(steps))
                if done % KILL_EVERY == 0:
                    await asyncio.to_thread(servers.restart_broker)
                else:
                    cut_connections()
                await growth
                last_s = time.monotonic()
                print(f"reconnect {done}: handled {handled.count}, {memory[-1] >> 10} KiB", flush=True)

        async def is_committed() -> bool:
            return await admin.lag(GROUP, TOPIC) == 0

        await until(is_committed, "all is committed", not_yet=(TandemError,))
        await growing.check()
    return memory


async def run(
    root: Path, servers: Servers, publisher: Publisher, total: int, *, reconnects: int, threads: bool
) -> bool:
    """Runs the soak, prints the last line and returns True if all is well."""
    async with Admin(servers.name_server) as admin:
        await admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
    handled = Handled(total)
    before = Held.now()
    began_s = time.monotonic()
    steps = math.ceil(STEPS / (reconnects / GROWTH_PART))
    async with growing_topics(servers.name_server, CLIENT, root, reconnects * steps) as growing:
        memory = await consume(
            servers, publisher, handled, growing, steps=steps, reconnects=reconnects, threads=threads
        )
    lasted_s = time.monotonic() - began_s
    await until(lambda: not Held.now().threads, "the threads of the handlers end")
    gc.collect()
    left = {"tasks": len(asyncio.all_tasks()) - 1, **Held.now().since(before)}
    fifth = len(memory) // 5
    growth = statistics.median(memory[-fifth:]) / statistics.median(memory[2 * fifth : 3 * fifth])
    is_good = growth <= GROWTH_MAX and not any(left.values()) and handled.count == total
    print(
        f"CLIENT SOAK {'OK' if is_good else 'FAILED'} messages={handled.count} rate={total / lasted_s:.0f}"
        f" reconnects={reconnects} duplicates={handled.duplicates}"
        f" in_new_queues={sum(growing.sent)} memory={growth:.2f}",
        *(f"{name}={count}" for name, count in left.items()),
    )
    return is_good


def soak(root: Path, *, total: int, reconnects: int = RECONNECTS, threads: bool) -> int:
    """Runs the soak and returns the exit code."""
    with ExitStack() as stack:
        servers = Servers(root, stack)
        publisher = stack.enter_context(Publisher(servers.name_server))
        is_good = asyncio.run(run(root, servers, publisher, total, reconnects=reconnects, threads=threads))
    return 0 if is_good else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--reconnects", type=int, default=RECONNECTS)
    parser.add_argument("--threads", action="store_true", help="a plain handler, in threads")
    parser.add_argument("--publish", metavar="NAME_SERVER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # every cut causes warnings in the clients
    if options.publish:
        publish(options.publish)
        return 0
    if options.messages < SAMPLES:
        parser.error(f"--messages {options.messages}: must be {SAMPLES} or more")
    with tempfile.TemporaryDirectory(prefix="tandemmq-client-soak-") as root:
        return soak(
            Path(root), total=options.messages, reconnects=options.reconnects, threads=options.threads
        )


if __name__ == "__main__":
    sys.exit(main())
