"""The transport of kombu, and so of Celery.

    from tandemmq.integrations import kombu_transport

    kombu_transport.register()
    app = Celery("shop", broker="tandemmq://127.0.0.1:9876")

Each AMQP queue is a group that pops (`exchanges.py`): any number of workers share it, and messages are
acknowledged one by one, in any order. Those of a worker that died are delivered again after the visibility
timeout. User and password of the address sign the requests.

Options in `broker_transport_options`:
visibility_timeout  seconds (3600); longer than the longest task that is acknowledged late
name_servers        several addresses, instead of the one in `broker`
prefix              of groups and exchanges (kombu): other prefixes share only topics of queues
queue_count         queues of each new topic at each broker (1); with several, messages overtake each other
priorities          True: new topics are for messages with priorities, of which higher ones come first
eta_from_broker     True: a task with a countdown or ETA waits at the broker, not in a worker
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty
from threading import Lock
from typing import Any, Final, TypeVar, cast

from tandemmq.client.blocking import LoopThread, in_loop, make_started, shared_thread
from tandemmq.client.options import ClientOptions
from tandemmq.errors import (
    BrokerUnreachable,
    Busy,
    ConfigError,
    NoRoute,
    RequestRejected,
    RequestTimeout,
    ServiceNotAvailable,
    TandemError,
    install_hint,
)
from tandemmq.integrations.exchanges import Binding, ExchangeKind, Names
from tandemmq.integrations.kombu_session import (
    ROUTING_KEY,
    ArrivedMessages,
    Credit,
    Delivery,
    KombuOptions,
    KombuSession,
)
from tandemmq.remoting.options import TlsClientOptions

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.utils.json import dumps, loads
    from kombu.utils.uuid import uuid
except ImportError:
    raise ImportError(f"this module needs the extra celery: {install_hint('celery')}") from None

log = logging.getLogger(__name__)

T = TypeVar("T")

SCHEME: Final = "tandemmq"
OUTAGES: Final = (BrokerUnreachable, RequestTimeout, NoRoute, Busy, ServiceNotAvailable)
"""The errors after which kombu connects again."""
AMQP_PROPERTIES: Final = frozenset(
    (
        *("app_id", "cluster_id", "correlation_id", "delivery_mode", "expiration", "message_id"),
        *("priority", "reply_to", "timestamp", "type", "user_id"),
    )
)
"""The properties that are sent, as over AMQP. Callers pass others, too, such as those of Celery's signals."""
UNLIMITED: Final = 256
"""The messages that a channel without a prefetch limit has at most."""
ETA_MS_MIN: Final = 1_000
ETA_MS_MAX: Final = 24 * 3600 * 1000
"""Longer delays are waited for in several steps: brokers limit them (timerMaxDelaySec)."""


def register() -> None:
    """Makes addresses that begin with `tandemmq://` known to kombu and Celery."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu has no types
    """The messages of a channel that are neither acknowledged nor rejected."""

    def __init__(self, channel: KombuChannel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._lock = Lock()
        self._open: dict[str, Any] = {}

    def free_count(self) -> int:
        """Returns the number of messages that the channel may still get."""
        return (self.prefetch_count or UNLIMITED) - len(self._open)

    def can_consume(self) -> bool:
        return self.free_count() > 0

    def can_consume_max_estimate(self) -> int:
        return max(0, self.free_count())

    def append(self, message: Any, delivery_tag: str) -> None:
        with self._lock:
            self._open[delivery_tag] = message

    def get(self, delivery_tag: str) -> Any:
        return self._open[delivery_tag]

    def ack(self, delivery_tag: str) -> None:
        self._settle(delivery_tag, is_done=True)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._settle(delivery_tag, is_done=not requeue)

    def _settle(self, delivery_tag: str, *, is_done: bool) -> None:
        with self._lock:
            message = self._open.pop(delivery_tag, None)
        if message is not None:
            try:
                self.channel.settle(message.delivery, is_done=is_done)
            finally:
                self.channel.on_room()

    def restore_unacked(self) -> list[object]:
        """Gives back every open message; kombu calls it when the channel closes."""
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        errors: list[object] = []
        for message in left:
            try:
                self.channel.settle(message.delivery, is_done=False)
            except TandemError as error:  # delivered again after the visibility timeout
                errors.append((error, message))
        return errors

    def restore_unacked_once(self, stderr: object = None) -> None:
        self._on_collect.cancel()
        if self.channel.is_open:
            self.restore_unacked()


class KombuMessage(virtual.Message):  # type: ignore[misc]  # kombu has no types
    """A message with its place at the broker."""

    def __init__(self, payload: dict[str, Any], channel: KombuChannel | None = None, **kwargs: Any) -> None:
        self.delivery: Delivery | None = payload.pop("delivery", None)
        super().__init__(payload, channel=channel, **kwargs)


class KombuChannel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel of the connection. All channels share the connection's session."""

    QoS = QoS
    Message = KombuMessage
    supports_fanout = True
    do_restore = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.transport = connection
        self.session = connection.session()
        self._options = connection.client.transport_options
        self.is_open = True
        self._credit: Credit | None = None

    # Queues

    def _new_queue(self, queue: str, auto_delete: bool = False, exclusive: bool = False, **_: Any) -> None:
        session = self.session
        if (auto_delete or exclusive) and queue not in self.transport.durable:
            self._run(session.open_transient(queue))
        else:
            self.transport.durable.add(queue)
            self._run(session.ensure_topic(session.options.names.queue_topic(queue)))

    def _has_queue(self, queue: str, **_: Any) -> bool:
        if queue in self.session.transient:
            return True
        return self._run(self.session.has_topic(self.session.options.names.queue_topic(queue)))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: object = None,
        **_: Any,
    ) -> None:
        exchange = exchange or "amq.direct"
        if self.state.has_binding(queue, exchange, routing_key):
            return
        if exchange not in self.state.exchanges and exchange.startswith("amq."):
            self.exchange_declare(exchange, type=exchange.removeprefix("amq."))
        binding = Binding(exchange, self._kind(exchange), routing_key)
        bindings = [*self._bindings(queue), binding]
        self._run(self.session.bind(queue, exchange, bindings))
        super().queue_bind(queue, exchange, routing_key, arguments)
        self._bindings(queue).append(binding)

    def _queue_bind(self, *_: Any) -> None:
        """Does nothing: `queue_bind` has done it."""

    def _kind(self, exchange: str) -> ExchangeKind:
        kind = self.state.exchanges.get(exchange, {}).get("type", "direct")
        return ExchangeKind(kind)

    def _bindings(self, queue: str) -> list[Binding]:
        return self.transport.bindings.setdefault(queue, [])

    def _size(self, queue: str) -> int:
        return self._run(self.session.count(queue, self._bindings(queue)))

    def _purge(self, queue: str) -> int:
        return self._run(self.session.purge(queue, self._bindings(queue)))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        if if_empty and self._size(queue):
            return
        self.state.queue_bindings_delete(queue)
        self.transport.bindings.pop(queue, None)
        self.transport.durable.discard(queue)
        self._run(self.session.delete(queue))

    # Sending

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        """Sends a message to an exchange, or, without one, to the queue that the key names."""
        given = message["properties"]
        message["properties"] = {name: given[name] for name in given.keys() & AMQP_PROPERTIES}
        message["properties"]["delivery_info"] = {}
        self._inplace_augment_message(message, exchange, routing_key)
        names, session = self.session.options.names, self.session
        how = self._delay_and_priority(message)
        body = dumps(message).encode()
        topic = names.exchange_topic(exchange)
        if not exchange:
            own = names.queue_topic(routing_key)
            is_durable = routing_key not in session.transient and (
                routing_key in self.transport.durable or self._run(session.has_topic(own))
            )
            topic = own if is_durable else topic
        self._run(session.send(topic, body, routing_key=routing_key, **how))

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        names = self.session.options.names
        body, how = dumps(message).encode(), self._delay_and_priority(message)
        self._run(self.session.send(names.queue_topic(queue), body, routing_key=queue, **how))

    def _delay_and_priority(self, message: dict[str, Any]) -> dict[str, int]:
        options = self._options
        eta = (message.get("headers") or {}).get("eta")
        if isinstance(eta, str) and options.get("eta_from_broker", True):
            try:
                due = datetime.fromisoformat(eta)
            except ValueError:
                due = datetime.fromtimestamp(0, UTC)  # the worker judges it
            delay_ms = ((due if due.tzinfo else due.replace(tzinfo=UTC)).timestamp() - time.time()) * 1000
            if delay_ms >= ETA_MS_MIN:
                return {"delay_ms": int(min(delay_ms, ETA_MS_MAX))}
        if options.get("priorities"):
            return {"priority": self._get_message_priority(message)}
        return {}

    # Receiving

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.on_room()

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kw: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kw)
        self.transport.readers[queue] = self
        if no_ack:
            self.transport.unacknowledged.add(queue)
        if self._credit is None:
            self._credit = self._run(in_loop(Credit, self.qos.free_count))
        self._run(self.session.read(queue, self._bindings(queue), self._credit))

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or self.transport.readers.pop(queue, None) is None:
            return
        self.transport.unacknowledged.discard(queue)
        self._run(self.session.stop_reading(queue))

    def _get(self, queue: str, timeout: object = None) -> dict[str, Any]:
        while (delivery := self._run(self.session.take_one(queue, self._bindings(queue)))) is not None:
            payload = payload_of(delivery)
            if payload is not None:
                return payload
            self.settle(delivery, is_done=True)
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Returns one message; None if there is none now."""
        message = super().basic_get(queue, no_ack=no_ack)
        if message is not None and no_ack:
            self.settle(message.delivery, is_done=True)
        return message

    def on_delivery(self, delivery: Delivery) -> bool:
        """Passes a delivery to the callback of its queue, and returns True. A message that has expired is
        dropped, and a task that is not due is sent again.
        """
        is_acknowledged = delivery.queue not in self.transport.unacknowledged
        try:
            payload = payload_of(delivery)
            if payload is None:
                self.settle(delivery, is_done=True)
                return False
            if self._postpone(payload, delivery):
                return False
            self.transport._deliver(payload, delivery.queue)
            if not is_acknowledged:
                self.settle(delivery, is_done=True)
            return True
        finally:
            # Only now: an open message must not be counted as free room in between.
            if self._credit is not None and delivery.popped is not None:
                self._run(in_loop(self._credit.release, 1))

    def _postpone(self, payload: dict[str, Any], delivery: Delivery) -> bool:
        message = delivery.popped
        delay = self._delay_and_priority(payload).get("delay_ms")
        if message is None or delay is None:
            return False
        key = message.properties.get(ROUTING_KEY, "")
        self._run(self.session.send(message.topic, message.body, routing_key=key, delay_ms=delay))
        self.settle(delivery, is_done=True)
        return True

    def on_room(self) -> None:
        """Notices that the channel may get more messages."""
        if self._credit is not None and self.is_open:
            self.transport.thread.call_soon(self._credit.changed.set)

    def settle(self, delivery: Delivery | None, *, is_done: bool) -> None:
        """Acknowledges a message, or lets it be delivered again at once."""
        if delivery is None or delivery.popped is None:
            return
        settle = self.session.acknowledge if is_done else self.session.give_back
        self._run(settle(delivery.queue, delivery.popped))

    def close(self) -> None:
        """Cancels the consumers and gives back what is not acknowledged."""
        try:
            super().close()
        finally:
            self.is_open = False

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.is_open:  # kombu may publish with the channel of a connection that it has just replaced
            work.close()
            raise BrokerUnreachable("the channel is closed")
        return self.transport.thread.call(work)


def payload_of(delivery: Delivery) -> dict[str, Any] | None:
    """Returns the message as kombu knows it; None if its expiration has passed, or kombu did not make it.

    Each delivery has a tag of its own: one message may be delivered to several queues, or twice.
    """
    try:
        payload = cast("dict[str, Any]", loads(delivery.body.decode()))
        properties = payload["properties"]
        expiration_ms = properties.get("expiration")
        if expiration_ms is not None and delivery.born_at_ms + float(expiration_ms) <= time.time() * 1000:
            return None
        properties.setdefault("delivery_info", {})["redelivered"] = delivery.is_redelivered
        properties["delivery_tag"] = uuid()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.error("queue %s: a message that kombu did not send is dropped: %r", delivery.queue, error)
        return None
    payload["delivery"] = delivery
    return payload


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
    """One connection of kombu."""

    Channel = KombuChannel
    default_port = 9876
    driver_type = driver_name = SCHEME
    polling_interval = None
    connection_errors = (*virtual.Transport.connection_errors, *OUTAGES)
    recoverable_connection_errors = (*virtual.Transport.connection_errors, *OUTAGES)
    channel_errors = (*virtual.Transport.channel_errors, RequestRejected)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(("direct", "topic", "fanout")), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._thread: LoopThread | None = None
        self._session: KombuSession | None = None
        self.durable: set[str] = set()
        self.bindings: dict[str, list[Binding]] = {}
        self.readers: dict[str, KombuChannel] = {}
        self.unacknowledged: set[str] = set()
        """The queues that are read without acknowledgements."""

    def session(self) -> KombuSession:
        """Returns the session of the connection, which the first call starts."""
        if self._session is None:
            thread = shared_thread.acquire()
            try:
                self._session = thread.call(
                    make_started(lambda: KombuSession(self._name_servers(), self._options()))
                )
            except BaseException:
                shared_thread.release(thread)
                raise
            self._thread = thread
        return self._session

    @property
    def thread(self) -> LoopThread:
        """The thread of the session."""
        assert self._thread is not None, "the session is started with the first channel"
        return self._thread

    def _name_servers(self) -> str:
        client = self.client
        named = client.transport_options.get("name_servers")
        if named:
            return named if isinstance(named, str) else ";".join(named)
        return f"{client.hostname or 'localhost'}:{client.port or self.default_port}"

    def _options(self) -> KombuOptions:
        client, given = self.client, self.client.transport_options
        return KombuOptions(
            client=ClientOptions(
                access_key=client.userid or "", secret_key=client.password or "", tls=tls_of(client.ssl)
            ),
            names=Names(given.get("prefix", "kombu")),
            visibility_s=float(given.get("visibility_timeout", 3600)),
            queue_count=int(given.get("queue_count", 1)),
            priorities=bool(given.get("priorities", False)),
        )

    def driver_version(self) -> str:
        from tandemmq import __version__

        return __version__

    def drain_events(self, connection: object, timeout: float | None = None) -> None:
        """Passes one message to its consumer. Raises socket.timeout when none came in time."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            delivery = self.session().arrivals.take(left)
            if delivery is None:
                raise TimeoutError
            channel = self.readers.get(delivery.queue)
            if channel is None:
                if delivery.popped is not None:
                    self.thread.call(self.session().give_back(delivery.queue, delivery.popped))
            elif channel.on_delivery(delivery):
                return

    def register_with_event_loop(self, connection: object, loop: Any) -> None:
        """Drains the connection whenever a message has arrived, in Celery's event loop."""
        arrivals: ArrivedMessages = self.session().arrivals
        loop.add_reader(arrivals.wake_fd, self._drain_ready)

    def _drain_ready(self) -> None:
        try:
            self.drain_events(None, timeout=0.0)
        except TimeoutError:
            pass

    def close_connection(self, connection: object) -> None:
        """Closes the channels and the session."""
        try:
            super().close_connection(connection)
        finally:
            session, self._session = self._session, None
            thread, self._thread = self._thread, None
            if session is not None and thread is not None:
                if thread.is_usable:  # not in a child after a fork
                    thread.call(session.close())
                shared_thread.release(thread)


def tls_of(ssl: object) -> TlsClientOptions | None:
    """Returns the TLS options for kombu's `ssl`: True, or a mapping with ca_certs, certfile and keyfile.

    Raises:  ConfigError for anything else.
    """
    if not ssl:
        return None
    given = ssl if isinstance(ssl, dict) else {}
    unknown = sorted(given.keys() - {"ca_certs", "certfile", "keyfile"})
    if unknown or (ssl is not True and not given):
        raise ConfigError(f"ssl {ssl!r}: must be True, or have ca_certs, certfile and keyfile")
    paths = {
        name: Path(given[name]) if given.get(name) else None for name in ("ca_certs", "certfile", "keyfile")
    }
    return TlsClientOptions(
        trust_path=paths["ca_certs"], certificate_path=paths["certfile"], key_path=paths["keyfile"]
    )


__all__ = ["SCHEME", "Transport", "register"]
