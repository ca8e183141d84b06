"""`python -m costs`: the number of steps that a broker takes per message, beside the recorded number.

A step is one bytecode instruction of the package that the event loop's thread executes. A broker runs in this
process over in-memory connections, so the same requests take the same steps on a busy machine and on a fast
one; other versions of Python differ by some percent. It uses the functions in Python even if
`tandemmq-speedups` is installed: only servers that a command starts load that.

The second figure includes the code that the steps call (checksums, copies, the operating system): the
thread's processor time, in rounds of a fixed loop that is timed alternately with it; the minimum of many
measurements.

The last line is `COSTS OK` or, if a case takes far more than before, `COSTS FAILED` with exit code 1. Both
limits leave room for other versions of Python and for noise: `tandemmq bench` shows small differences.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table

import tandemmq
from sim.memory import MemoryNetwork
from tandemmq.bench.generator import send_frames
from tandemmq.broker.broker import Broker
from tandemmq.broker.options import BrokerOptions
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.consume import PopRequest, PullRequest
from tandemmq.protocol.requests.send import EndTransactionRequest, SendRequestV2
from tandemmq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom
from tandemmq.runtime.ports import Machine, TimerHandle
from tandemmq.store import BrokerRole, StoreOptions
from tandemmq.units import EpochMs

PACKAGE: Final = str(Path(tandemmq.__file__).parent)
TOPIC: Final = "Costs"
USER_TOPIC: Final = "CostsUser"
BODY_BYTES: Final = 1024
PULLED: Final = 32
TAGS: Final = ("TagA", "TagB", "TagC", "TagD")
STEPS_RISE_MAX: Final = 1.3
TIME_RISE_MAX: Final = 3.0
TIMED_ROUNDS: Final = 40
TRIES_MAX: Final = 4
EXCHANGE_SECONDS_MAX: Final = 60.0
INVISIBLE_MS: Final = 600_000
FIXED_LOOP_ROUNDS: Final = 20_000
DELAY_S: Final = 1.0
MASTER_PORT: Final = 10911
SHOWN_FUNCTIONS: Final = 25
_SENT: Final = re.compile(rb'"msgId":"([0-9A-F]{32,})".*"queueOffset":"(\d+)"')


End: TypeAlias = "Callable[[Asker], Awaitable[None]]"
"""The work that follows the answers to a case's frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to use a broker: `frames` are written together, and `messages` is the number of messages in
    their answers.

    `steps` and `loops` are per message, from Python 3.11. `loops` None: the time is meaningless, because the
    event loop mostly sleeps and wakes up. `then`: work after the answers, which counts too.
    """

    name: str
    frames: Sequence[bytes]
    messages: int
    steps: float
    loops: float | None
    answer_bytes_min: int = 0
    then: End | None = None

    async def run(self, asker: Asker) -> int:
        """Runs the case once and returns the bytes of its answers."""
        size = await asker.exchange(b"".join(self.frames), len(self.frames))
        if self.then is not None:
            await self.then(asker)
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The current cost of a case per message: steps, and processor time in rounds of the fixed loop and in
    microseconds. Microseconds allow comparing Python versions on one machine.
    """

    case: Case
    steps: float
    loops: float
    us: float
    by_function: Counter[CodeType]

    @property
    def is_far_more(self) -> bool:
        """True for a large regression."""
        if self.steps > self.case.steps * STEPS_RISE_MAX:
            return True
        return self.case.loops is not None and self.loops > self.case.loops * TIME_RISE_MAX


def cases() -> list[Case]:
    """Returns the cases in a fixed order: sends precede the pulls of their messages."""
    sends, pulled = send_frames(TOPIC, 1, BODY_BYTES, 64), PULLED * BODY_BYTES
    return [
        Case(name="send a batch of 16", frames=[_batch_frame(16)], messages=16, steps=255, loops=84),
        Case(name="send a batch of 256", frames=[_batch_frame(256)], messages=256, steps=59, loops=26),
        Case(name="send, one in flight", frames=sends[:1], messages=1, steps=2317, loops=None),
        Case(name="send, 64 in flight", frames=sends, messages=64, steps=210, loops=80),
        Case(
            name="pull", frames=[pull_frame()], messages=PULLED, steps=189, loops=26, answer_bytes_min=pulled
        ),
        Case(
            name="pull one tag of four",
            frames=[pull_frame("TagA")],
            messages=PULLED,
            steps=192,
            loops=41,
            answer_bytes_min=pulled,
        ),
        Case(
            name="pull by SQL92, one of four",
            frames=[pull_frame("TAGS = 'TagA'", "SQL92")],
            messages=PULLED,
            steps=231,
            loops=69,
            answer_bytes_min=pulled,
        ),
        Case(
            name="send a batch of 64, user properties",
            frames=[_batch_frame(64, USER_TOPIC, {"a": "17", "price": "99.5"})],
            messages=64,
            steps=98,
            loops=37,
        ),
        Case(
            name="pull by SQL92, user properties",
            frames=[pull_frame("a > 5 AND b = 'x'", "SQL92", topic=USER_TOPIC)],
            messages=PULLED,
            steps=1292,
            loops=117,
            answer_bytes_min=pulled,
        ),
        Case(name="pop", frames=[pop_frame()], messages=PULLED, steps=418, loops=92, answer_bytes_min=pulled),
        Case(
            name="pop and its acks",
            frames=[pop_frame()],
            messages=PULLED,
            steps=728,
            loops=180,
            answer_bytes_min=pulled,
            then=_acknowledge,
        ),
    ]


def cases_with_an_end(deliver: End, commit: End) -> list[Case]:
    """Returns the cases that continue after the answers to their sends. `deliver` ends the delay of all
    waiting messages; `commit` ends the transactions of the last answered half messages.
    """
    half = {"TRAN_MSG": "true", "PGROUP": "costs"}
    return [
        Case(
            name="send with a delay, until delivered",
            frames=[_single_frame(number, {"DELAY": "1"}) for number in range(16)],
            messages=16,
            steps=3530,
            loops=900,
            then=deliver,
        ),
        Case(
            name="half message and its commit",
            frames=[_single_frame(number, half, sys_flag=TRANSACTION_PREPARED) for number in range(16)],
            messages=16,
            steps=5600,
            loops=1100,
            then=commit,
        ),
    ]


def cases_with_a_slave() -> list[Case]:
    """Returns the cases of a master with a synchronous slave; the steps are those of both brokers."""
    sends = send_frames(TOPIC, 1, BODY_BYTES, 1)
    name = "one in flight, synchronous slave"
    return [Case(name=name, frames=sends, messages=1, steps=7372, loops=None)]


async def _commit(asker: Asker) -> None:
    frames = []
    for message_id, queue_offset in asker.sent:
        header = EndTransactionRequest(
            topic=TOPIC,
            producer_group="costs",
            half_queue_offset=queue_offset,
            log_offset=int(message_id[-16:], 16),
            decision=TRANSACTION_COMMIT,
            unique_key="-",
            transaction_id="-",
        )
        frames.append(encode_frame(Command.request(RequestCode.END_TRANSACTION, header)))
    await asker.exchange(b"".join(frames), len(frames))


async def _acknowledge(asker: Asker) -> None:
    """Acknowledges each message of the last answer, which is that to a pop, by a request of its own.

    The requests are made without the package's code, whose steps would count.
    """
    fields = json.loads(asker.header)["extFields"]
    start = fields["startOffsetInfo"].split(" ")[2]
    lease = f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 broker-a 0"
    frames = []
    for number, offset in enumerate(fields["msgOffsetInfo"].split(" ")[2].split(",")):
        header = (
            f'{{"code":{int(RequestCode.ACK_MESSAGE)},"extFields":{{"queueId":"0","offset":"{offset}",'
            f'"extraInfo":"{lease} {offset}","consumerGroup":"costs","topic":"{TOPIC}"}},"flag":0,'
            f'"language":"JAVA","opaque":{number},"serializeTypeCurrentRPC":"JSON","version":463}}'
        ).encode()
        frames.append((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
    await asker.exchange(b"".join(frames), len(frames))


def _single_frame(number: int, properties: dict[str, str], *, sys_flag: int = 0) -> bytes:
    pairs = {"UNIQ_KEY": f"7F0000010001{number:020X}", "WAIT": "true", "TAGS": TAGS[number % 4], **properties}
    header = send_header(properties=encode_properties(pairs).decode(), sys_flag=sys_flag)
    return encode_frame(Command.request(RequestCode.SEND_MESSAGE_V2, header, body=b"x" * BODY_BYTES))


def send_header(
    topic: str = TOPIC,
    *,
    queue_id: int = 0,
    properties: str | None = None,
    is_batch: bool = False,
    sys_flag: int = 0,
) -> SendRequestV2:
    """Returns properties as a producer writes them."""
    return SendRequestV2(
        producer_group="costs",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_at_ms=1_700_000_000_000,
        flag=0,
        is_batch=is_batch,
        properties=properties,
    )


def _batch_frame(count: int, topic: str = TOPIC, user: Mapping[str, str] | None = None) -> bytes:
    """Returns a batch of messages like those of the single sends, with alternating tags. With `user`
    properties there is also `b`, which has four alternating values.
    """
    body = b"x" * BODY_BYTES
    items = []
    for number in range(count):
        properties = {"UNIQ_KEY": f"7F0000010001{number:020X}", "WAIT": "true", "TAGS": TAGS[number % 4]}
        if user is not None:
            properties |= {**user, "b": "xyzw"[number % 4]}
        items.append((0, body, encode_properties(properties)))
    header = send_header(topic, is_batch=True)
    command = Command.request(RequestCode.SEND_BATCH_MESSAGE, header, body=encode_batch(items))
    return encode_frame(command)


def pull_frame(
    subscription: str = "*", expression_type: str = "TAG", *, topic: str = TOPIC, queue_offset: int = 0
) -> bytes:
    """Returns a pull of `PULLED` messages of queue 0, which the broker must not hold."""
    header = PullRequest(
        consumer_group="costs",
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        count_max=PULLED,
        sys_flag=0x4,
        committed_offset=0,
        suspend_timeout_ms=0,
        subscription_version=0,
        subscription=subscription,
        expression_type=expression_type,
    )
    return encode_frame(Command.request(RequestCode.PULL_MESSAGE, header))


def pop_frame() -> bytes:
    """Returns a pop of `PULLED` messages of queue 0, which the broker must not hold."""
    header = PopRequest(
        consumer_group="costs", topic=TOPIC, queue_id=0, count_max=PULLED, invisible_ms=INVISIBLE_MS
    )
    return encode_frame(Command.request(RequestCode.POP_MESSAGE, header))


class Asker(asyncio.Protocol):
    """The client's end of a connection: it counts answers without using the package's code."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        """The message id and queue offset of each send in the last `exchange`."""
        self.header = b""
        """The header of the last answer."""
        self._received = bytearray()
        self._wanted = self._answer_bytes = 0
        self._answered: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the broker closed the connection: {exc}")

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            size = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < size:
                return
            # Only the header is searched: a message body is not an answer, and searching it would take longer
            # than the broker's work.
            self.header = header = bytes(self._received[8 : 8 + int.from_bytes(self._received[5:8], "big")])
            if self._wanted > 0 and b'"code":0,' not in header:
                self._fail(f"the broker refuses: {bytes(self._received[8:size])!r}")
            found = _SENT.search(header)
            if found is not None:
                self.sent.append((found[1].decode(), int(found[2])))
            del self._received[:size]
            self._wanted -= 1
            self._answer_bytes += size
        if self._wanted == 0 and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _fail(self, reason: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(RuntimeError(reason))

    def send(self, frames: bytes) -> None:
        """Sends requests without waiting for answers."""
        self._transport.write(frames)

    def end(self) -> None:
        """Closes the connection."""
        self._transport.close()

    async def exchange(self, frames: bytes, count: int) -> int:
        """Sends `count` requests at once and returns the bytes of their answers.

        Raises:  RuntimeError if one is rejected, TimeoutError.
        """
        self._wanted, self._answer_bytes = count, 0
        self.sent = []
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(frames)
        async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
            await self._answered
        return self._answer_bytes


@contextmanager
def counting_steps() -> Iterator[Counter[CodeType]]:
    """Yields a counter of the package's instructions that this thread executes, by function."""
    steps: Counter[CodeType] = Counter()
    with _monitoring(steps) if sys.version_info >= (3, 12) else _tracing(steps):
        yield steps


@contextmanager
def _tracing(steps: Counter[CodeType]) -> Iterator[None]:
    def count(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            steps[frame.f_code] += 1
        return count

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return count

    traced_before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(traced_before)


@contextmanager
def _monitoring(steps: Counter[CodeType]) -> Iterator[None]:
    """Counts like `_tracing`, which misses most instructions from Python 3.12 on."""
    monitoring: Any = vars(sys)["monitoring"]  # Python 3.11, for which types are checked, lacks it
    tool, thread = monitoring.PROFILER_ID, threading.get_ident()

    def count(code: CodeType, _offset: int) -> object:
        if not code.co_filename.startswith(PACKAGE):
            return monitoring.DISABLE
        if threading.get_ident() == thread:
            steps[code] += 1
        return None

    monitoring.use_tool_id(tool, "costs")
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, count)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.free_tool_id(tool)
        monitoring.restart_events()


def fixed_loop() -> int:
    """Runs the fixed loop, whose operations are those of a broker: look up, compare, add, make bytes."""
    table, total = {number: number for number in range(8)}, 0
    for number in range(FIXED_LOOP_ROUNDS):
        total += len(table[number & 7].to_bytes(8, "big"))
    return total


def _loop_seconds() -> float:
    begun_at = time.thread_time()
    fixed_loop()
    return (time.thread_time() - begun_at) / FIXED_LOOP_ROUNDS


async def measure(case: Case, asker: Asker) -> Cost:
    """Measures steps and time. The case first runs a few times, so that tables and caches are as in a running
    broker.

    Raises:  RuntimeError if the broker does not return the expected answers.
    """
    for _ in range(3):
        size = await case.run(asker)
        if size < case.answer_bytes_min:
            raise RuntimeError(f"{case.name}: {size} bytes came, at least {case.answer_bytes_min} are right")
    counts = []
    for _ in range(16):  # timers of a busy machine's brokers fall into some
        with counting_steps() as counted:
            await case.run(asker)
        counts.append(counted)
    least = min(counts, key=Counter.total)
    loops, us = await _time(case, asker)
    for _ in range(TRIES_MAX):  # a busy machine may have slowed it down
        if case.loops is None or loops / case.messages <= case.loops * TIME_RISE_MAX:
            break
        loops, us = map(min, (loops, us), await _time(case, asker))
    return Cost(
        case=case,
        steps=least.total() / case.messages,
        loops=loops / case.messages,
        us=us / case.messages,
        by_function=least,
    )


async def _time(case: Case, asker: Asker) -> tuple[float, float]:
    """Returns the processor time of this thread, in rounds of the fixed loop and in microseconds."""
    seconds, loop_seconds = [], []
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMED_ROUNDS):
            loop_seconds.append(_loop_seconds())
            begun_at = time.thread_time()
            for _ in range(4):
                await case.run(asker)
            seconds.append((time.thread_time() - begun_at) / 4)
    finally:
        gc.enable()
    return min(seconds) / min(loop_seconds), min(seconds) * 1e6


class JumpingClock(LoopClock):
    """The loop's clock, which can be set ahead: timers that become due by that run at once."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._timers: dict[asyncio.TimerHandle, tuple[float, Callable[..., object], tuple[Any, ...]]] = {}

    def now_ms(self) -> EpochMs:
        return EpochMs(super().now_ms() + round(self._ahead_s * 1000))

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_s

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle:
        due_at = self.monotonic() + delay_s
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle = loop.call_later(delay_s, lambda: self._run(timer))
        self._timers[timer] = due_at, fn, args
        return timer

    def jump(self, seconds: float) -> None:
        """Sets the clock ahead."""
        self._ahead_s += seconds
        now = self.monotonic()
        self._timers = {timer: call for timer, call in self._timers.items() if not timer.cancelled()}
        for timer, (due_at, _, _) in list(self._timers.items()):
            if due_at <= now and not timer.cancelled():
                timer.cancel()
                self._run(timer)

    def _run(self, timer: asyncio.TimerHandle) -> None:
        _, fn, args = self._timers.pop(timer)
        fn(*args)


Connect = Callable[[], Awaitable[Asker]]


@asynccontextmanager
async def running_broker(root: Path) -> AsyncIterator[Connect]:
    """Runs a broker in this process with its store below `root`, and yields a function that connects to
    it.
    """
    async with _running(root, LoopClock()) as (_, connect):
        yield connect


@asynccontextmanager
async def _running(root: Path, clock: LoopClock) -> AsyncIterator[tuple[Broker, Connect]]:
    network = MemoryNetwork(LoopClock())
    broker = Broker(
        BrokerOptions(listen_host="127.0.0.1", listen_port=0, property_filter_enable=True),
        StoreOptions(root=root, commit_log_file_bytes=256 << 20),
        machine=Machine(network, RealDisk(), clock, SeededRandom(1)),
    )
    await broker.start()
    try:
        yield broker, partial(_connect, network, broker)
    finally:
        await broker.stop()


@asynccontextmanager
async def _running_ahead(root: Path) -> AsyncIterator[tuple[End, End, Connect]]:
    """Runs a broker like `running_broker`; also yields the ends of `cases_with_an_end`. Each end advances the
    time: the broker's periodic work, such as building the key index, is always counted.
    """
    clock = JumpingClock()
    async with _running(root, clock) as (broker, connect):
        store = broker.store
        assert store is not None
        ends: dict[str, int] = {}
        has_more = asyncio.Event()

        def note(newest: Mapping[tuple[str, int], int]) -> None:
            ends.update({topic: end for (topic, _), end in newest.items()})
            has_more.set()

        store.dispatcher.on_dispatch(note)

        async def deliver(_asker: Asker) -> None:
            clock.jump(DELAY_S)
            while ends.get(TOPIC, 0) < ends[SCHEDULE_TOPIC]:
                has_more.clear()
                await has_more.wait()

        async def commit(asker: Asker) -> None:
            await _commit(asker)
            clock.jump(DELAY_S)

        yield deliver, commit, connect


@asynccontextmanager
async def _running_pair(root: Path) -> AsyncIterator[Connect]:
    """Runs a synchronous master and its slave in this process, like `running_broker`."""
    network = MemoryNetwork(LoopClock())
    master, slave = (
        Broker(
            BrokerOptions(
                listen_host="127.0.0.1",
                listen_port=MASTER_PORT + 10 * broker_id,
                broker_id=broker_id,
                ha_master_address=f"127.0.0.1:{MASTER_PORT + 1}",
                ha_master_remoting_address=f"127.0.0.1:{MASTER_PORT}",
            ),
            StoreOptions(
                root=root / role.value, commit_log_file_bytes=256 << 20, role=role, in_sync_replicas=2
            ),
            machine=Machine(network, RealDisk(), LoopClock(), SeededRandom(1)),
        )
        for broker_id, role in enumerate((BrokerRole.SYNC_MASTER, BrokerRole.SLAVE))
    )
    async with AsyncExitStack() as running:
        for broker in (master, slave):
            await broker.start()
            running.push_async_callback(broker.stop)
        assert master.store is not None
        async with asyncio.timeout(EXCHANGE_SECONDS_MAX):
            while not master.store.replies.acks.positions():  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0.01)
        yield partial(_connect, network, master)


async def _connect(network: MemoryNetwork, broker: Broker) -> Asker:
    asker = Asker()
    await network.connect("127.0.0.1", broker.address[1], lambda: asker, 10.0)
    return asker


async def measure_all(root: Path) -> list[Cost]:
    """Measures all cases, with stores below `root`."""
    async with running_broker(root / "1") as connect:
        asker = await connect()
        found = [await measure(case, asker) for case in cases()]
    async with _running_ahead(root / "2") as (deliver, commit, connect):
        asker = await connect()
        found += [await measure(case, asker) for case in cases_with_an_end(deliver, commit)]
    async with _running_pair(root / "3") as connect:
        asker = await connect()
        return [*found, *[await measure(case, asker) for case in cases_with_a_slave()]]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m costs", description=__doc__)
    parser.add_argument("--where", default="", help="print which functions take the steps of this case")
    options = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tandemmq-costs-") as directory:
        try:
            found = asyncio.run(measure_all(Path(directory)))
        except (RuntimeError, TimeoutError) as error:
            console.print(f"COSTS FAILED: {error or 'the broker does not answer'}", soft_wrap=True)
            return 1
    console.print(report(found))
    for one in found:
        if options.where and options.where in one.case.name:
            console.print(where(one))
    failed = [one.case.name for one in found if one.is_far_more]
    verdict = f"COSTS FAILED: far more than before: {', '.join(failed)}" if failed else "COSTS OK"
    console.print(verdict, soft_wrap=True)
    return 1 if failed else 0


def report(found: Sequence[Cost]) -> Table:
    """Returns the current and recorded cost of each case."""
    table = Table(title="per message")
    table.add_column("case")
    for name in ("steps", "before", "fixed loops", "before", "us"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            one.case.name,
            f"{one.steps:.0f}",
            f"{one.case.steps:.0f}",
            f"{one.loops:.1f}",
            "" if one.case.loops is None else f"{one.case.loops:.1f}",
            f"{one.us:.2f}",
        )
    return table


def where(cost: Cost) -> Table:
    """Returns the functions with the most steps."""
    table = Table(title=f"steps per message: {cost.case.name}")
    table.add_column("function")
    table.add_column("steps", justify="right")
    for code, steps in cost.by_function.most_common(SHOWN_FUNCTIONS):
        path = Path(code.co_filename).relative_to(PACKAGE)
        table.add_row(f"{path}: {code.co_qualname}", f"{steps / cost.case.messages:.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
