"""The load of a cluster that a console shows: producers, a quick, a slow and a failing consumer, delayed
messages, open transactions, and messages whose every text tries to run as a script.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack

from tandemmq.client import (
    Admin,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)

ORDERS, PAYMENTS, HOSTILE = "Orders", "Payments", "Hostile"
QUICK, SLOW, FAILING = "billing", "warehouse", "invoices"
PRODUCER, TRANSACTIONS = "shop", "shop-transactions"
TRACED_KEY = "order-1"
HOUR_MS = 3_600_000
DELAY_LEVEL = 9
"""Five minutes: the message is delayed for the whole run."""

SCRIPTS = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "';window.hacked=1;//",
    "javascript:window.hacked=1",
    "{{7*7}}${7*7}<svg/onload=window.hacked=1>",
)
"""Texts that would set `window.hacked` where a page does not escape them, or places them in a script."""

PAUSE_S = 0.05
FIRST_COUNT = 40
DEAD_COUNT = 5


class Load:
    """Clients in a thread of its own. `start` returns once the cluster has something of everything."""

    def __init__(self, name_servers: str, client: ClientOptions) -> None:
        self.name_servers = name_servers
        self.client = client
        self.traced_key = ""
        """The unique key of a message whose trace is complete."""
        self.hostile = ""
        """The position of a message that tries to run scripts: broker/queue/offset."""
        self.recall_handle = ""
        """The handle by which a timer message can be cancelled; empty if the broker gives none."""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        """Starts the clients. Raises the first error of any of them."""
        self._thread.start()
        assert self._ready.wait(120), "the load did not start"
        self.check()

    def stop(self) -> None:
        """Ends the clients."""
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def check(self) -> None:
        """Raises the error that ended the load."""
        if self._failure is not None:
            raise AssertionError(f"the load failed: {self._failure!r}") from self._failure

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:  # noqa: BLE001  # `check` raises it in the test
            self._failure = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(self.name_servers, options=self.client))
            for topic in (ORDERS, PAYMENTS, HOSTILE):
                await admin.ensure_topic(topic, queue_count=4)
            options = ProducerOptions(client=self.client, trace=True, timeout_s=20)
            producer = await stack.enter_async_context(Producer(PRODUCER, self.name_servers, options=options))
            await self._consume(stack)
            await self._send_kinds(producer, stack)
            self._ready.set()
            number = FIRST_COUNT
            while not self._stop.is_set():
                await producer.send(order(number))
                number += 1
                await asyncio.sleep(PAUSE_S)  # the rate of the load, not a wait

    async def _consume(self, stack: AsyncExitStack) -> None:
        """Starts the consumer that keeps up."""

        async def accept(message: ReceivedMessage) -> None:
            pass

        options = PushOptions(client=self.client, start_from=StartFrom.FIRST, trace=True)
        consumer = PushConsumer(QUICK, self.name_servers, accept, options=options)
        consumer.subscribe(ORDERS)
        await stack.enter_async_context(consumer)

    async def _reader(self, stack: AsyncExitStack, group: str, topic: str) -> Consumer:
        options = ConsumerOptions(client=self.client, start_from=StartFrom.FIRST, auto_ack=False)
        consumer = Consumer(group, self.name_servers, options=options)
        consumer.subscribe(topic)
        return await stack.enter_async_context(consumer)

    async def _send_kinds(self, producer: Producer, stack: AsyncExitStack) -> None:
        for number in range(FIRST_COUNT):
            sent = await producer.send(order(number))
            if number == 1:
                self.traced_key = sent.unique_key
        for number, text in enumerate(SCRIPTS):
            properties = {"note": text}
            tags, keys = f"tag{text}", [f"k{number}"]
            sent = await producer.send(
                Message(HOSTILE, text.encode(), tags=tags, keys=keys, properties=properties)
            )
            self.hostile = (
                self.hostile or f"{sent.queue.broker_name}/{sent.queue.queue_id}/{sent.queue_offset}"
            )
        await producer.send(Message(HOSTILE, bytes(range(256)), keys=["binary"]))
        for number in range(DEAD_COUNT):
            await producer.send(Message(PAYMENTS, b'{"amount": %d}' % number, keys=[f"payment-{number}"]))
        await producer.send(Message(PAYMENTS, b'{"later": true}', keys=["later"], delay_level=DELAY_LEVEL))
        timed = await producer.send(Message(PAYMENTS, b'{"hour": 1}', keys=["timed"], delay_ms=HOUR_MS))
        self.recall_handle = timed.recall_handle or ""
        failing = await self._reader(stack, FAILING, PAYMENTS)
        given_up = 0
        while given_up < DEAD_COUNT:
            for message in await failing.poll():
                await failing.retry_later(message, delay_level=-1)
                given_up += 1
        slow = await self._reader(stack, SLOW, ORDERS)
        for message in await slow.poll(count_max=4, timeout_s=20):
            slow.ack(message)
        await slow.commit()
        await self._open_transactions(stack)

    async def _open_transactions(self, stack: AsyncExitStack) -> None:
        def undecided(_message: object) -> TransactionState:
            return TransactionState.UNKNOWN

        transactional = TransactionProducer(
            TRANSACTIONS, self.name_servers, check=undecided, options=ProducerOptions(client=self.client)
        )
        await stack.enter_async_context(transactional)
        for number in range(3):
            half = Message(PAYMENTS, b'{"open": %d}' % number, keys=[f"half-{number}"])
            await transactional.send(half, undecided)


def order(number: int) -> Message:
    """Returns an order as JSON."""
    body = {"order": number, "item": "lamp", "price": 19.9, "customer": {"name": "Ada", "city": "Kochi"}}
    return Message(
        ORDERS, json.dumps(body).encode(), tags="paid" if number % 2 else "open", keys=[f"order-{number}"]
    )
