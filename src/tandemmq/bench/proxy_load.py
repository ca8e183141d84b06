"""The loads of a gRPC proxy: sends, receives and acknowledgements of one topic and one consumer group.

Receives take up to BATCH messages per call, as push consumers ask for by default, and each message is
acknowledged by a call of its own. `ProxyLoad` works with any proxy; the topic and the group must exist.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from typing import Any, Final, Self

from tandemmq.bench.generator import LoadResult
from tandemmq.bench.grpc_load import OK_STATUS, GrpcLoad, messages_of
from tandemmq.errors import BrokerUnreachable, TandemError
from tandemmq.proxy.rpc import Message
from tandemmq.proxy.schema import enum_number, message_class

OPERATIONS: Final = ("send", "receive", "ack")
IN_FLIGHT: Final = (1, 16, 64)
BATCH: Final = 32
BACKLOG: Final = 16_384
"""The messages that a measured receive takes, unless its time is over before."""
SPARE: Final = 2 * max(IN_FLIGHT) * BATCH
"""The messages that are left for the receives in flight when the last one is counted: an empty one waits."""
REQUESTS: Final = 4_096
INVISIBLE_S: Final = 3_600
"""The invisible time: longer than any run, so that no message is delivered twice."""
POLL_S: Final = 5
FILL_IN_FLIGHT: Final = 2
READY_S_MAX: Final = 180.0


class ProxyLoad:
    """The loads of one proxy at `host:port`. Once entered, it is a client with settings, and its group has a
    position in each queue.

    Raises:  OSError, BrokerUnreachable as `GrpcLoad`; TandemError for a topic or group that is refused.
    """

    def __init__(self, address: str, topic: str, group: str, body_bytes: int) -> None:
        self._address = address
        self._topic = topic
        self._group = group
        self._body_bytes = body_bytes
        self._client_id = f"bench@{uuid.uuid4().hex[:12]}"
        self._waiting = 0
        """The messages in the topic that the group has not received."""
        self._handles: list[str] = []
        self._sends: list[bytes] = []
        self._receives: list[bytes] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            session = stack.enter_context(self._connect())
            route = ask_route(session, self._address, self._topic)
            if not route.message_queues:
                raise TandemError(f"topic {self._topic} has no route: {route.status.message or 'no answer'}")
            self._sends = send_requests(self._topic, self._body_bytes, REQUESTS)
            brokers = sorted({queue.broker.name for queue in route.message_queues})
            self._receives = [self._receive_request(name) for name in brokers]
            session.open_stream("Telemetry", self._settings())
            for request in self._receives:
                answer = session.ask("ReceiveMessage", request)
                if not answer:
                    raise TandemError(f"group {self._group} cannot receive from topic {self._topic}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, operation: str, *, in_flight: int, seconds: float) -> LoadResult:
        """Runs a load of OPERATIONS. The count of receives is that of their messages, and acknowledgements
        are of messages that were received before.
        """
        runs: dict[str, Callable[..., LoadResult]] = {
            "send": self._send,
            "receive": self._receive,
            "ack": self._ack,
        }
        return runs[operation](in_flight=in_flight, seconds=seconds)

    def prepare(self, operation: str) -> None:
        """Sends the messages that a load of this operation needs."""
        wanted = BACKLOG + SPARE - self._waiting
        if operation == "receive" and wanted > 0:
            shape = message_class("SendMessageRequest")
            batch = shape()
            for request in self._sends[:BATCH]:
                batch.MergeFrom(shape.FromString(request))
            requests = iter([batch.SerializeToString()] * (wanted // BATCH + 1))
            with self._connect() as load:
                done = load.run("SendMessage", requests, in_flight=FILL_IN_FLIGHT, seconds_max=60.0)
            if done.failed:
                raise TandemError(f"{done.failed} batches of {done.count} were refused")
            self._waiting += done.count * BATCH

    def _connect(self) -> GrpcLoad:
        return GrpcLoad(self._address, self._client_id)

    def _send(self, *, in_flight: int, seconds: float) -> LoadResult:
        with self._connect() as load:
            done = load.run("SendMessage", cycle(self._sends), in_flight=in_flight, seconds_max=seconds)
        self._waiting += done.count - done.failed
        return done

    def _receive(self, *, in_flight: int, seconds: float) -> LoadResult:
        shape = message_class("ReceiveMessageResponse")
        begun, empty = len(self._handles), 0

        def requests() -> Iterator[bytes]:
            for request in cycle(self._receives):
                if len(self._handles) - begun >= BACKLOG:
                    return
                yield request

        def on_answer(body: bytes) -> None:
            nonlocal empty
            count = len(self._handles)
            for message in map(shape.FromString, messages_of(body)):
                if message.WhichOneof("content") == "message":
                    self._handles.append(message.message.system_properties.receipt_handle)
            empty += len(self._handles) == count and OK_STATUS not in body

        with self._connect() as load:
            done = load.run(
                "ReceiveMessage", requests(), in_flight=in_flight, seconds_max=seconds, on_answer=on_answer
            )
        received = len(self._handles) - begun
        self._waiting = max(0, self._waiting - received)
        return replace(done, count=received, failed=done.failed - empty)

    def _ack(self, *, in_flight: int, seconds: float) -> LoadResult:
        shape = message_class("AckMessageRequest")
        scope = {"group": {"name": self._group}, "topic": {"name": self._topic}}
        handles, self._handles = self._handles, []
        requests = [shape(**scope, entries=[{"receipt_handle": one}]).SerializeToString() for one in handles]
        with self._connect() as load:
            return load.run("AckMessage", iter(requests), in_flight=in_flight, seconds_max=seconds)

    def _receive_request(self, broker: str) -> bytes:
        return _bytes_of(
            "ReceiveMessageRequest",
            group={"name": self._group},
            message_queue={"topic": {"name": self._topic}, "id": -1, "broker": {"name": broker}},
            filter_expression={"type": enum_number("FilterType", "TAG"), "expression": "*"},
            batch_size=BATCH,
            invisible_duration={"seconds": INVISIBLE_S},
            long_polling_timeout={"seconds": POLL_S},
        )

    def _settings(self) -> bytes:
        subscription = {
            "group": {"name": self._group},
            "subscriptions": [{"topic": {"name": self._topic}, "expression": {"expression": "*"}}],
            "receive_batch_size": BATCH,
            "long_polling_timeout": {"seconds": POLL_S},
        }
        settings = {
            "client_type": enum_number("ClientType", "SIMPLE_CONSUMER"),
            "request_timeout": {"seconds": 3},
            "subscription": subscription,
            "user_agent": {"language": enum_number("Language", "JAVA"), "version": "5.0.7"},
        }
        return _bytes_of("TelemetryCommand", settings=settings)


def ask_route(load: GrpcLoad, address: str, topic: str) -> Message:
    """Returns the answer to a QueryRoute; an empty one if the call failed."""
    host, _, port = address.rpartition(":")
    endpoints = {
        "scheme": enum_number("AddressScheme", "IPv4"),
        "addresses": [{"host": host, "port": int(port)}],
    }
    body = load.ask("QueryRoute", _bytes_of("QueryRouteRequest", topic={"name": topic}, endpoints=endpoints))
    return message_class("QueryRouteResponse").FromString(next(messages_of(body), b""))


def wait_until_served(address: str, topic: str) -> None:
    """Returns when the proxy answers with the route of the topic. Raises TandemError after READY_S_MAX."""
    deadline_s = time.monotonic() + READY_S_MAX
    reason = ""
    while time.monotonic() < deadline_s:
        try:
            with GrpcLoad(address, "bench") as load:
                answer = ask_route(load, address, topic)
            if answer.message_queues:
                return
            reason = answer.status.message
        except (OSError, BrokerUnreachable) as error:
            reason = str(error)
        time.sleep(0.005)
    raise TandemError(f"the proxy {address} does not serve topic {topic} after {READY_S_MAX:.0f} s: {reason}")


def send_requests(topic: str, body_bytes: int, count: int) -> list[bytes]:
    """Returns SendMessageRequests with one message each, as the official Java client sends it."""
    body = b"x" * body_bytes
    begun_s = int(time.time())
    found = []
    for number in range(count):
        properties: dict[str, Any] = {
            "tag": "TagA",
            "message_id": f"01{number:032X}",
            "body_encoding": enum_number("Encoding", "IDENTITY"),
            "message_type": enum_number("MessageType", "NORMAL"),
            "born_timestamp": {"seconds": begun_s, "nanos": number * 1_000},
            "born_host": "bench",
        }
        message = {"topic": {"name": topic}, "body": body, "system_properties": properties}
        found.append(_bytes_of("SendMessageRequest", messages=[message]))
    return found


def _bytes_of(name: str, **fields: Any) -> bytes:
    message: Message = message_class(name)(**fields)
    return bytes(message.SerializeToString())
