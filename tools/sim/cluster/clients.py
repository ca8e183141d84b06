"""Machines with applications on them: producers that send, and consumers that acknowledge."""

from __future__ import annotations

import asyncio

from sim.cluster.checkers import KEY_COUNT
from sim.cluster.ledger import Fate, Ledger, Sent
from sim.cluster.nodes import Node
from sim.cluster.settings import TAGS, TOPIC, Group
from sim.cluster.watch import Watch
from sim.cluster.world import World
from tandemmq.api.broker_send import SendStatus
from tandemmq.client import (
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.client.instance import ClientInstance
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.message_id import UniqueKeys, decode_message_id
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.runtime.tasks import TaskScope

PROCESS_ID = 4242
"""The process id in unique keys; the real one would differ from run to run."""
CLIENT = ClientOptions(heartbeat_s=1.0, route_refresh_s=2.0, call_timeout_s=2.0)


class ClientNode(Node):
    """An application with one client instance."""

    def __init__(self, name: str, world: World, namesrv: str, ledger: Ledger, watch: Watch) -> None:
        outside = world.outside
        is_outside = outside is not None and outside.draws_client()
        super().__init__(name, world, is_outside=is_outside)
        self.is_done = False
        self.is_ending = False
        self._namesrv = outside.name_servers(namesrv) if outside is not None and is_outside else namesrv
        ledger.counts["outside clients"] += is_outside
        self._ledger = ledger
        self._watch = watch
        self._instance: ClientInstance | None = None
        self._route_refresh_s = CLIENT.route_refresh_s

    def start(self) -> None:
        process = self.begin_process()
        self.is_done = self.is_ending = False
        self._instance = None
        self.forget()
        self.world.note(f"{process} starts")
        self.world.spawn(process, self._run_safely(), "run")

    async def _run_safely(self) -> None:
        process = self.process
        assert process is not None
        try:
            await self.run()
        except Exception as error:  # noqa: BLE001 (any error is a finding)
            if process.is_alive:
                self.on_fatal(error)

    async def run(self) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Drops the state of an earlier run."""

    async def connect(self) -> ClientInstance:
        """Returns a client instance, as soon as a name server can be reached."""
        options = ClientOptions(
            instance_name=f"{PROCESS_ID}#{self.process}",
            heartbeat_s=CLIENT.heartbeat_s,
            route_refresh_s=self._route_refresh_s,
            call_timeout_s=CLIENT.call_timeout_s,
        )
        while True:
            instance = ClientInstance(
                self._namesrv, options, network=self.network, clock=self.clock, chance=self.chance
            )
            try:
                await instance.start()
            except ClientError:
                await self.clock.sleep(0.5)
                continue
            instance.unique_keys = UniqueKeys(self.host.ip, PROCESS_ID, self.start_count)
            self._instance = instance
            return instance

    async def end(self) -> None:
        """Stops the client; kills it if it has not reached a name server yet, since nothing is to be stopped
        then.
        """
        if self._instance is None:
            self.kill()
        else:
            await self.stop_cleanly()


class ProducerNode(ClientNode):
    """Sends until `is_ending` is set; each worker has one request in flight."""

    def __init__(self, name: str, world: World, namesrv: str, ledger: Ledger, watch: Watch) -> None:
        super().__init__(name, world, namesrv, ledger, watch)
        self._route_refresh_s = world.settings.producer_refresh_s
        self._producer: Producer | None = None

    def forget(self) -> None:
        self._producer = None

    async def run(self) -> None:
        settings = self.world.settings
        instance = await self.connect()
        options = ProducerOptions(batch_linger_ms=settings.batch_linger_ms, timeout_s=4.0)
        producer = self._producer = Producer(f"producers-{self.name}", options=options, instance=instance)
        await producer.start()
        scope = TaskScope(f"app-{self.name}", lambda _name, error: self.on_fatal(error))
        workers = [scope.start(f"work-{n}", self._work(producer)) for n in range(settings.worker_count)]
        for worker in workers:
            await worker
        self.is_done = True

    async def stop_server(self) -> None:
        self.is_ending = True
        await self.world.until(lambda: self.is_done, 30.0)
        if self._producer is not None:
            await self._producer.close()
        if self._instance is not None:
            await self._instance.close()

    async def _work(self, producer: Producer) -> None:
        dice, settings = self.world.dice, self.world.settings
        newest: dict[int, Sent] = {}
        while not self.is_ending:
            kinds = ((65, "one"), (10, "keyed"), (15, "batch"), (5, "burst"), (5, "oneway"))
            kind = dice.pick_weighted(kinds)
            if kind == "batch":
                await self._send_batch(producer, newest)
            elif kind == "burst":
                await self._send_burst(producer)
            elif kind == "oneway":
                await self._send_oneway(producer)
            else:
                await self._send_one(producer, newest, self._is_waiting(), is_keyed=kind == "keyed")
            if dice.happens(60):
                await self.clock.sleep(dice.between(*settings.pause_ms) / 1000)

    def _new(self, is_waiting: bool) -> tuple[Sent, Message]:
        dice, settings = self.world.dice, self.world.settings
        tags = dice.pick(TAGS)
        sent = self._ledger.new(
            dice.between(0, settings.body_bytes_max),
            topic=TOPIC,
            tags=tags,
            is_waiting=is_waiting,
            now_s=self.world.loop.time(),
        )
        keys = f"key{sent.number % KEY_COUNT}" if dice.happens(30) else ""
        return sent, Message(topic=TOPIC, body=sent.body, tags=tags, keys=keys, wait_stored=is_waiting)

    def _is_waiting(self) -> bool:
        return self.world.dice.happens(self.world.settings.wait_percent)

    async def _send_burst(self, producer: Producer) -> None:
        """Sends messages at once; a broker takes those that arrive together as a block."""
        async with asyncio.TaskGroup() as sends:
            for _ in range(self.world.dice.between(5, 16)):
                sends.create_task(self._send_one(producer, {}, is_waiting=True))

    async def _send_one(
        self, producer: Producer, newest: dict[int, Sent], is_waiting: bool, *, is_keyed: bool = False
    ) -> None:
        sent, message = self._new(is_waiting)
        try:
            queue = await producer.queue_for(TOPIC, "customer") if is_keyed else None
            result = await producer.send(message, queue=queue)
        except TandemError as error:
            self._fail([sent], error)
        else:
            self._settle([sent], [result], newest)

    async def _send_batch(self, producer: Producer, newest: dict[int, Sent]) -> None:
        is_waiting = self._is_waiting()
        pairs = [self._new(is_waiting) for _ in range(self.world.dice.between(2, 8))]
        batch = [sent for sent, _ in pairs]
        try:
            results = await producer.send_batch([message for _, message in pairs])
        except TandemError as error:
            self._fail(batch, error)
        else:
            self._settle(batch, results, newest)

    async def _send_oneway(self, producer: Producer) -> None:
        sent, message = self._new(False)
        try:
            await producer.send_oneway(message)
        except TandemError as error:
            self._fail([sent], error)
        else:
            sent.fate = Fate.UNKNOWN

    def _fail(self, batch: list[Sent], error: TandemError) -> None:
        now_s = self.world.loop.time()
        for sent in batch:
            sent.fate, sent.settled_at = Fate.UNKNOWN, now_s
        kind = type(error).__name__
        self._ledger.counts[f"send failed: {kind}"] += 1
        self.world.note(f"{self.process} send of #{batch[0].number} x{len(batch)} fails: {kind}: {error}")

    def _settle(self, batch: list[Sent], results: list[SendResult], newest: dict[int, Sent]) -> None:
        now_s = self.world.loop.time()
        for sent, result in zip(batch, results, strict=True):
            sent.fate = Fate.ACKNOWLEDGED if result.status is SendStatus.SEND_OK else Fate.STORED
            sent.settled_at = now_s
            sent.queue_id = result.queue.queue_id
            sent.queue_offset = result.queue_offset
            sent.log_offset = decode_message_id(result.message_id).log_offset
            self._ledger.counts[result.status.name] += 1
            self._watch.on_answered(sent, newest.get(sent.queue_id))
            newest[sent.queue_id] = sent
        head = batch[0]
        self.world.note(
            f"{self.process} #{head.number} x{len(batch)} {results[0].status.name} "
            f"queue {head.queue_id}:{head.queue_offset} at {head.log_offset}"
        )


class ConsumerNode(ClientNode):
    """A member of a group. A message is finished once the application has processed it."""

    def __init__(
        self, name: str, world: World, namesrv: str, ledger: Ledger, watch: Watch, group: Group
    ) -> None:
        super().__init__(name, world, namesrv, ledger, watch)
        self.group = group
        self._consumer: Consumer | None = None

    def forget(self) -> None:
        self._consumer = None

    async def run(self) -> None:
        dice = self.world.dice
        instance = await self.connect()
        options = ConsumerOptions(
            start_from=StartFrom.FIRST,
            auto_ack=dice.happens(60),
            commit_s=0.5,
            rebalance_s=2.0,
            suspend_s=float(dice.between(1, 5)),
            pull_error_delay_s=0.5,
            pull_count_max=dice.pick((1, 8, 256)),
            cached_count_max=dice.pick((4, 64, 4096)),
        )
        consumer = self._consumer = Consumer(self.group.name, options=options, instance=instance)
        consumer.subscribe(TOPIC, self.group.tags)
        await consumer.start()
        while not self.is_ending:
            await self._consume(consumer)
        self.is_done = True

    async def stop_server(self) -> None:
        self.is_ending = True
        await self.world.until(lambda: self.is_done, 30.0)
        if self._consumer is not None:
            await self._consumer.close()
        if self._instance is not None:
            await self._instance.close()

    async def _consume(self, consumer: Consumer) -> None:
        dice, process = self.world.dice, self.process
        assert process is not None
        messages = await consumer.poll(dice.between(1, 40), 0.5)
        if not messages:
            return
        self._record_delivered(consumer, messages)
        if dice.happens(30):
            await self.clock.sleep(dice.between(0, 200) / 1000)
        if self.is_ending and dice.happens(50):
            return  # closed without having done its work: all of it must be delivered again
        for message in messages:
            is_given_back = (
                dice.happens(1)
                and not is_retry_topic(message.record.topic)
                and await self._request_redelivery(consumer, message)
            )
            if not is_given_back:
                self._watch.on_finished(self.group, message)
        if not consumer.options.auto_ack:
            dice_order = sorted(messages, key=lambda _: dice.below(1000)) if dice.happens(30) else messages
            consumer.ack(*dice_order)

    async def _request_redelivery(self, consumer: Consumer, message: ReceivedMessage) -> bool:
        """Returns True if the broker will deliver the message again."""
        begin_s = self.world.loop.time()
        try:
            await consumer.retry_later(message, delay_level=self.world.dice.between(1, 2))
        except TandemError as error:
            self.world.note(f"{self.process} cannot release {message.queue_offset}: {type(error).__name__}")
            return False
        self._watch.on_returned(self.group, message, begin_s)
        self.world.note(f"{self.process} releases {message.queue_id}:{message.queue_offset}")
        return True

    def _record_delivered(self, consumer: Consumer, messages: list[ReceivedMessage]) -> None:
        process = self.process
        assert process is not None
        # Only here the reader of each message is known, and with it the assignment of the queue.
        sources = [delivery.source for delivery in consumer._handed_out]
        for index, message in enumerate(messages):
            source = sources[index] if len(sources) == len(messages) else None
            session = None if source is None else (source, source.in_flight)  # type: ignore[attr-defined]
            self._watch.on_delivered(self.group, process, session, message)
        counts = f"{len(messages)} from {messages[0].queue_id}:{messages[0].queue_offset}"
        self.world.note(f"{process} gets {counts}")
