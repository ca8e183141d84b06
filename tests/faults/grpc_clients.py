"""Producers and push consumers of the gRPC protocol that act as the official clients do.

Each has a telemetry stream with its settings and heartbeats at the proxy that it uses. When that proxy cannot
be reached, it uses the other one. A push consumer repeats a failed receive with the same attempt id, and an
acknowledgement every second until the answer is OK or INVALID_RECEIPT_HANDLE.

Source: spec proxy 4, 5.6, 5.10, 5.13, 11.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from grpc_history import AckEnd, Attempt, ChaosHistory, Delivery, attempt_of

from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code

REQUEST_S = 3.0
POLL_S = 5
RETRY_S = 1.0
HEARTBEAT_S = 5.0
BATCH_SIZE = 8
SEND_TRIES = 3
"""The tries of one send; the application sends the message again after that."""
ELSEWHERE = 0.3
"""The part of the acknowledgements that go to the other proxy."""
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class GrpcClient:
    """A client with a channel to each proxy. `start` and `close` frame its life."""

    def __init__(
        self,
        client_id: str,
        proxies: Sequence[str],
        home: int,
        settings: dict[str, Any],
        history: ChaosHistory,
    ) -> None:
        """`home`: the place in `proxies` of the one that is used first."""
        self.client_id = client_id
        self.home = self.current = home
        self._history = history
        self._settings = settings
        self._group = settings.get("subscription", {}).get("group")
        self._channels = [grpc.aio.insecure_channel(one, options=CHANNEL_OPTIONS) for one in proxies]
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ready = asyncio.Event()
        self._moved = asyncio.Event()

    async def start(self) -> None:
        """Returns once a proxy has answered the settings."""
        self._spawn(self._run_telemetry())
        self._spawn(self._run_heartbeats())
        async with asyncio.timeout(30):
            await self._is_ready.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    def use(self, place: int) -> None:
        """Uses this proxy from now on, also for telemetry."""
        if place != self.current:
            self.current = place
            self._moved.set()

    def _spawn(self, coro: Any) -> None:
        task = asyncio.ensure_future(coro)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._history.faults.append(f"{self.client_id} ended: {error!r}")

    def _leave(self, place: int, error: grpc.aio.AioRpcError, name: str) -> None:
        """Uses the other proxy if this one cannot be reached."""
        self._history.errors[f"{name}: gRPC {error.code().name}"] += 1
        if error.code() is grpc.StatusCode.UNAVAILABLE and place == self.current:
            self.use(1 - place)

    def _record_error(self, name: str, status: Any) -> None:
        text = re.sub(r"[\w.:-]*\d[\w.:-]*", "N", status.message)[:120]
        self._history.errors[f"{name}: {Code(status.code).name} {text}"] += 1

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-request-id", str(uuid.uuid4())),
        )

    async def ask(self, place: int, name: str, **fields: Any) -> Any:
        """Returns the answer of a unary rpc of this proxy. Raises AioRpcError."""
        call = self._channels[place].unary_unary(SERVICE + name)
        request = message_class(f"{name}Request")(**fields)
        data = await call(request.SerializeToString(), metadata=self._metadata(), timeout=REQUEST_S)
        return message_class(f"{name}Response").FromString(data)

    async def _run_telemetry(self) -> None:
        shape = message_class("TelemetryCommand")
        while True:
            place, stream = self.current, None
            self._moved.clear()
            try:
                stream = self._channels[place].stream_stream(SERVICE + "Telemetry")(metadata=self._metadata())
                await stream.write(shape(settings=self._settings).SerializeToString())
                moved = asyncio.ensure_future(self._moved.wait())
                try:
                    while place == self.current:
                        reading = asyncio.ensure_future(stream.read())
                        await asyncio.wait([reading, moved], return_when=asyncio.FIRST_COMPLETED)
                        if not reading.done():
                            reading.cancel()
                            break
                        data = reading.result()
                        if data is grpc.aio.EOF:
                            break
                        if shape.FromString(data).HasField("settings"):
                            self._is_ready.set()
                finally:
                    moved.cancel()
            except grpc.aio.AioRpcError as error:
                self._leave(place, error, "Telemetry")
            finally:
                if stream is not None:
                    stream.cancel()
            if place == self.current:
                await asyncio.sleep(RETRY_S)

    async def _run_heartbeats(self) -> None:
        fields = {
            "client_type": self._settings["client_type"],
            **({"group": self._group} if self._group else {}),
        }
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            place = self.current
            try:
                await self.ask(place, "Heartbeat", **fields)
            except grpc.aio.AioRpcError as error:
                self._leave(place, error, "Heartbeat")


class GrpcProducer(GrpcClient):
    """Sends the messages of its senders, each of which sends one message after the other."""

    def __init__(
        self, client_id: str, proxies: Sequence[str], home: int, topic: str, history: ChaosHistory
    ) -> None:
        publishing = {"topics": [{"name": topic}], "validate_message_type": True}
        settings = {"client_type": enum_number("ClientType", "PRODUCER"), "publishing": publishing}
        super().__init__(client_id, proxies, home, settings, history)
        self._topic = topic

    def send_as(self, sender: str, pause_s: float) -> None:
        """Sends messages until `close`; in a FIFO topic the sender is the message group."""
        self._spawn(self._send_all(sender, pause_s))

    async def _send_all(self, sender: str, pause_s: float) -> None:
        for number in itertools.count():
            message_id = f"01{uuid.uuid4().hex.upper()}"
            for attempt in itertools.count():
                one = Attempt(self._topic, sender, number, attempt)
                place = self.current
                if await self._send(place, one, message_id):
                    self._history.record_send(one)
                    break
                self.use(1 - place)
                if attempt % SEND_TRIES == SEND_TRIES - 1:
                    await asyncio.sleep(0.2)
            await asyncio.sleep(pause_s)

    async def _send(self, place: int, one: Attempt, message_id: str) -> bool:
        properties: dict[str, Any] = {
            "message_id": message_id,
            "born_timestamp": {"seconds": int(time.time())},
        }
        if one.topic in self._history.fifo_topics:
            properties["message_group"] = one.sender
        properties["message_type"] = enum_number(
            "MessageType", "FIFO" if "message_group" in properties else "NORMAL"
        )
        message = {"topic": {"name": one.topic}, "body": one.body, "system_properties": properties}
        try:
            answer = await self.ask(place, "SendMessage", messages=[message])
        except grpc.aio.AioRpcError as error:
            self._history.errors[f"SendMessage: gRPC {error.code().name}"] += 1
            return False
        status = answer.entries[0].status if answer.entries else answer.status
        if status.code != Code.OK:
            self._record_error("SendMessage", status)
        return bool(status.code == Code.OK)


class GrpcPushConsumer(GrpcClient):
    """Receives from each assignment, works on the messages and acknowledges them."""

    def __init__(
        self,
        client_id: str,
        proxies: Sequence[str],
        home: int,
        topic: str,
        history: ChaosHistory,
        *,
        chance: random.Random,
        invisible_s: float,
        slow_part: float = 0.0,
    ) -> None:
        """The group is `topic` with -group; `slow_part` of the messages take longer than `invisible_s`."""
        entry = {"topic": {"name": topic}, "expression": {"expression": "*"}}
        settings = {
            "client_type": enum_number("ClientType", "PUSH_CONSUMER"),
            "subscription": {"group": {"name": f"{topic}-group"}, "subscriptions": [entry]},
        }
        super().__init__(client_id, proxies, home, settings, history)
        self._topic = topic
        self._chance = chance
        self._invisible_s = invisible_s
        self._slow_part = slow_part

    async def start(self) -> None:
        await GrpcClient.start(self)
        scope = {"topic": {"name": self._topic}, "group": self._group}
        answer = await self.ask(self.current, "QueryAssignment", **scope)
        assert answer.assignments, answer.status
        for assignment in answer.assignments:
            self._spawn(self._receive_all(assignment.message_queue))

    async def _receive_all(self, queue: Any) -> None:
        attempt_id = str(uuid.uuid4())
        while True:
            place = self.current
            try:
                status, messages = await self._receive(place, queue, attempt_id)
            except grpc.aio.AioRpcError as error:
                self._leave(place, error, "ReceiveMessage")
                await asyncio.sleep(RETRY_S)
                continue
            attempt_id = str(uuid.uuid4())
            if status.code == Code.OK:
                await self._consume(place, messages)
            elif status.code != Code.MESSAGE_NOT_FOUND:
                self._record_error("ReceiveMessage", status)
                await asyncio.sleep(0.02 if status.code == Code.TOO_MANY_REQUESTS else RETRY_S)

    async def _receive(self, place: int, queue: Any, attempt_id: str) -> tuple[Any, list[Any]]:
        request = message_class("ReceiveMessageRequest")(
            group=self._group,
            message_queue=queue,
            filter_expression={"expression": "*"},
            batch_size=BATCH_SIZE,
            auto_renew=True,
            attempt_id=attempt_id,
            long_polling_timeout={"seconds": POLL_S},
        )
        stream = self._channels[place].unary_stream(SERVICE + "ReceiveMessage")(
            request.SerializeToString(), metadata=self._metadata(), timeout=POLL_S + REQUEST_S
        )
        shape = message_class("ReceiveMessageResponse")
        parts = [shape.FromString(data) async for data in stream]
        messages = [part.message for part in parts if part.WhichOneof("content") == "message"]
        return parts[0].status, messages

    async def _consume(self, place: int, messages: list[Any]) -> None:
        self._history.record_receive(self.client_id, [_delivery(self._topic, one) for one in messages])
        received_s = time.monotonic()
        if self._topic in self._history.fifo_topics:
            for one in messages:
                await self._ack(place, one, received_s)
            return
        for one in messages:
            self._spawn(self._work(place, one, received_s))

    async def _work(self, place: int, message: Any, received_s: float) -> None:
        is_slow = self._chance.random() < self._slow_part
        await asyncio.sleep(self._invisible_s * 1.3 if is_slow else self._chance.uniform(0.001, 0.02))
        await self._ack(place, message, received_s)

    async def _ack(self, delivered_at: int, message: Any, received_s: float) -> None:
        attempt = attempt_of(self._topic, message.body)
        properties = message.system_properties
        entry = {"message_id": properties.message_id, "receipt_handle": properties.receipt_handle}
        place = 1 - delivered_at if self._chance.random() < ELSEWHERE else delivered_at
        self._history.record_ack_begin(attempt)
        while True:
            end = await self._ack_once(place, entry)
            is_early = time.monotonic() - received_s < self._invisible_s * 0.8
            self._history.record_ack(attempt, end, is_elsewhere=place != delivered_at, is_early=is_early)
            if end is not AckEnd.UNKNOWN:
                return
            await asyncio.sleep(RETRY_S)
            place = 1 - place

    async def _ack_once(self, place: int, entry: dict[str, Any]) -> AckEnd:
        scope = {"group": self._group, "topic": {"name": self._topic}}
        try:
            answer = await self.ask(place, "AckMessage", **scope, entries=[entry])
        except grpc.aio.AioRpcError as error:
            self._history.errors[f"AckMessage: gRPC {error.code().name}"] += 1
            return AckEnd.UNKNOWN
        status = answer.entries[0].status if answer.entries else answer.status
        if status.code == Code.OK:
            return AckEnd.OK
        self._record_error("AckMessage", status)
        return AckEnd.INVALID if status.code == Code.INVALID_RECEIPT_HANDLE else AckEnd.UNKNOWN


def _delivery(topic: str, message: Any) -> Delivery:
    own = message.system_properties
    return Delivery(attempt_of(topic, message.body), own.delivery_attempt, own.queue_id, own.queue_offset)


async def close_all(clients: Sequence[GrpcClient]) -> None:
    """Closes these clients; one that fails does not keep the others."""
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*(one.close() for one in clients), return_exceptions=True)
