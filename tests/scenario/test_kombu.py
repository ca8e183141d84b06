"""kombu over a real cluster: queues, exchanges, acknowledgements, transient queues, a new master."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from tandemmq.client import Message
from tandemmq.errors import ConfigError, RequestTimeout
from tandemmq.integrations import kombu_transport
from tandemmq.integrations.kombu_session import KombuSession
from tandemmq.remoting.options import TlsClientOptions
from tandemmq.testing import BlockingCluster
from waits import PATIENCE_S, until_blocking

kombu_transport.register()


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    # A broker commits a pop once it is flushed, by default after up to 10 s.
    with BlockingCluster(settings={"flushCommitLogLeastPages": 0}) as cluster:
        yield cluster


@pytest.fixture
def connect(cluster: BlockingCluster) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def connect(**options: Any) -> Any:
        made.append(Connection(f"tandemmq://{cluster.name_servers}", transport_options=options))
        return made[-1]

    yield connect
    for connection in made:
        connection.release()


def drain(connection: Any, is_enough: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not is_enough():
        assert time.monotonic() < ends_at, "the messages did not come"
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            pass


def rest(connection: Any) -> None:
    """Asserts that nothing more arrives."""
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.3)


class Found:
    """A callback that keeps the messages, and acknowledges them if `acks`."""

    def __init__(self, *, acks: bool = True) -> None:
        self.bodies: list[Any] = []
        self.messages: list[Any] = []
        self._acks = acks

    def __call__(self, body: Any, message: Any) -> None:
        self.bodies.append(body)
        self.messages.append(message)
        if self._acks:
            message.ack()


def test_a_simple_queue_keeps_the_order(connect: Callable[..., Any]) -> None:
    queue = connect().SimpleQueue("jobs.v1")
    for number in range(20):
        queue.put({"number": number})
    assert queue.qsize() == 20
    found = [queue.get(timeout=PATIENCE_S) for _ in range(20)]
    assert [message.payload["number"] for message in found] == list(range(20))
    for message in found:
        message.ack()
    with pytest.raises(queue.Empty):
        queue.get(timeout=0.1)
    queue.close()


def test_exchanges_reach_the_queues_that_match(connect: Callable[..., Any]) -> None:
    news, everyone = Exchange("news", type="topic"), Exchange("everyone", type="fanout")
    direct = Exchange("direct-news", type="direct")
    reader, writer = connect(), connect()
    queues = [
        Queue("europe", news, "eu.#"),
        Queue("dutch", news, "*.nl"),
        Queue("all", everyone),
        Queue("exact", direct, "a.b"),
    ]
    found = {queue.name: Found() for queue in queues}
    consumers = [Consumer(reader.channel(), [queue], callbacks=[found[queue.name]]) for queue in queues]
    for consumer in consumers:
        consumer.consume()
    producer = Producer(writer.channel())
    for key in ("eu.nl", "eu", "us.nl", "us.x"):
        producer.publish(key, exchange=news, routing_key=key, declare=[news])
    producer.publish("to all", exchange=everyone, declare=[everyone])
    for key in ("a.b", "a.c"):
        producer.publish(key, exchange=direct, routing_key=key, declare=[direct])
    drain(reader, lambda: sum(len(one.bodies) for one in found.values()) == 6)
    rest(reader)
    assert {name: sorted(one.bodies) for name, one in found.items()} == {
        "europe": ["eu", "eu.nl"],
        "dutch": ["eu.nl", "us.nl"],
        "all": ["to all"],
        "exact": ["a.b"],
    }


def test_a_binding_keeps_messages_while_nobody_reads(connect: Callable[..., Any]) -> None:
    exchange = Exchange("late", type="fanout")
    first = connect()
    Queue("late-queue", exchange)(first.channel()).declare()
    Producer(connect().channel()).publish("kept", exchange=exchange, declare=[exchange])
    found = Found()
    reader = connect()
    with Consumer(reader.channel(), [Queue("late-queue", exchange)], callbacks=[found]):
        drain(reader, lambda: bool(found.bodies))
    assert found.bodies == ["kept"]


def test_unacknowledged_messages_are_delivered_again(connect: Callable[..., Any]) -> None:
    queue = Queue("again", Exchange("again"), "again")
    one, other = connect(), connect()
    found = Found(acks=False)
    consumer = Consumer(one.channel(), [queue], callbacks=[found], prefetch_count=2)
    consumer.consume()
    producer = Producer(other.channel())
    for number in range(3):
        producer.publish(number, exchange=queue.exchange, routing_key="again", declare=[queue])
    drain(one, lambda: len(found.messages) == 2)
    rest(one)  # the prefetch count is reached
    found.messages[0].ack()
    drain(one, lambda: len(found.messages) == 3)
    found.messages[1].requeue()
    drain(one, lambda: len(found.messages) == 4)
    found.messages[3].ack()
    one.release()  # gives the third one back
    later = Found()
    with Consumer(other.channel(), [queue], callbacks=[later]):
        drain(other, lambda: bool(later.bodies))
        rest(other)
    assert later.bodies == [2]


def test_cancelled_consumers_lose_nothing_and_leave_their_room(connect: Callable[..., Any]) -> None:
    one, other = connect(), connect()
    queue = Queue("cancelled")
    producer = Producer(other.channel())
    producer.publish(0, exchange="", routing_key="cancelled", declare=[queue])
    found = Found()
    channel = one.channel()
    for number in range(1, 40):
        consumer = Consumer(channel, [queue], callbacks=[found], prefetch_count=4)
        consumer.consume()
        producer.publish(number, exchange="", routing_key="cancelled")
        try:
            one.drain_events(timeout=0.01)
        except TimeoutError:
            pass
        consumer.cancel()
    consumer = Consumer(channel, [queue], callbacks=[found], prefetch_count=4)
    consumer.consume()
    drain(one, lambda: set(found.bodies) == set(range(40)))
    assert sorted(found.bodies) == list(range(40))


@pytest.mark.parametrize("prefetch_count", [1, 4])
def test_an_idle_queue_leaves_room_for_the_other_queues(
    connect: Callable[..., Any], prefetch_count: int
) -> None:
    one, other, found = connect(), connect(), Found()
    queues = [Queue(f"idle-{prefetch_count}-{number}") for number in range(3)]
    consumer = Consumer(one.channel(), queues, callbacks=[found], prefetch_count=prefetch_count)
    with consumer:
        producer = Producer(other.channel())
        for number in range(9):
            name = queues[number % 2].name
            producer.publish(number, exchange="", routing_key=name, declare=[queues[number % 2]])
        drain(one, lambda: sorted(found.bodies) == list(range(9)))


def test_idle_queues_do_not_slow_down_a_busy_one(connect: Callable[..., Any]) -> None:
    one, found = connect(), Found()
    queues = [Queue(f"quiet-{number}") for number in range(5)]
    producer = Producer(connect().channel())
    for number in range(20):
        producer.publish(number, exchange="", routing_key="quiet-0", declare=[queues[0]])
    began_s = time.monotonic()
    with Consumer(one.channel(), queues, callbacks=[found], prefetch_count=1):
        drain(one, lambda: found.bodies == list(range(20)))
    assert time.monotonic() - began_s < 10.0  # each turn of an idle queue once took half a second


def test_a_requeued_message_never_becomes_a_dead_letter(connect: Callable[..., Any]) -> None:
    one = connect()
    seen: list[bool] = []

    def requeue(body: Any, message: Any) -> None:
        seen.append(message.delivery_info["redelivered"])
        message.requeue() if len(seen) < 40 else message.ack()

    queue = Queue("returned")
    with Consumer(one.channel(), [queue], callbacks=[requeue]):
        Producer(one.channel()).publish("x", exchange="", routing_key="returned", declare=[queue])
        drain(one, lambda: len(seen) == 40)
        rest(one)
    assert seen == [False] + 39 * [True]


@pytest.mark.parametrize("settle", ["ack", "requeue", "reject"])
def test_a_message_settled_after_its_visibility_timeout_is_delivered_again(
    connect: Callable[..., Any], settle: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = connect(visibility_timeout=1)
    queue, found = Queue(f"late-{settle}"), Found(acks=False)
    with Consumer(one.channel(), [queue], callbacks=[found]):
        Producer(one.channel()).publish("x", exchange="", routing_key=queue.name, declare=[queue])
        drain(one, lambda: len(found.messages) == 2)
        getattr(found.messages[0], settle)()
        assert ("its visibility timeout has passed" in caplog.text) is (settle == "requeue")
        found.messages[1].ack()


def test_one_message_in_two_queues_of_a_channel_is_acknowledged_in_both(connect: Callable[..., Any]) -> None:
    one = connect(visibility_timeout=2)
    exchange, found, channel = Exchange("both", type="fanout"), Found(), one.channel()
    with Consumer(channel, [Queue("both-1", exchange), Queue("both-2", exchange)], callbacks=[found]):
        Producer(one.channel()).publish("x", exchange=exchange)
        drain(one, lambda: len(found.bodies) == 2)
        assert not channel.qos._open
        with pytest.raises(TimeoutError):
            one.drain_events(timeout=4)


def test_a_binding_made_while_the_queue_is_read_counts(connect: Callable[..., Any]) -> None:
    one = connect()
    exchange, found, channel = Exchange("more-keys"), Found(), one.channel()
    producer = Producer(one.channel())
    with Consumer(channel, [Queue("more", exchange, "a")], callbacks=[found]):
        Queue("more", exchange, "b")(channel).queue_bind()
        for key in ("a", "b", "c"):
            producer.publish(key, exchange=exchange, routing_key=key)
        drain(one, lambda: len(found.bodies) == 2)
        rest(one)
    assert sorted(found.bodies) == ["a", "b"]


def test_messages_that_kombu_did_not_send_are_dropped(
    connect: Callable[..., Any], cluster: BlockingCluster
) -> None:
    one, found, queue = connect(), Found(), Queue("foreign")
    with Consumer(one.channel(), [queue], callbacks=[found]), cluster.producer() as producer:
        for body in (b"\xff", b"{}", b"[]", b'{"properties": 1}'):
            producer.send(Message("foreign", body))
        Producer(one.channel()).publish("ours", exchange="", routing_key="foreign")
        drain(one, lambda: found.bodies == ["ours"])
        rest(one)


def test_settings_of_tls_are_used_or_refused() -> None:
    options = kombu_transport.tls_of({"ca_certs": "ca.pem", "certfile": "c.pem", "keyfile": "k.pem"})
    assert options == TlsClientOptions(
        trust_path=Path("ca.pem"), certificate_path=Path("c.pem"), key_path=Path("k.pem")
    )
    assert kombu_transport.tls_of(True) == TlsClientOptions()
    assert kombu_transport.tls_of(False) is None
    with pytest.raises(ConfigError, match="must be True, or have"):
        kombu_transport.tls_of({"cert_reqs": 0})


def test_a_transient_queue_gets_what_comes_after_its_declaration(connect: Callable[..., Any]) -> None:
    replies = Exchange("replies", type="direct")
    asker, answerer = connect(), connect()
    producer = Producer(answerer.channel())
    producer.publish("before", exchange=replies, routing_key="id-1", declare=[replies])
    queue = Queue("id-1.reply", replies, "id-1", auto_delete=True)
    channel = asker.channel()
    queue(channel).declare()
    producer.publish("by exchange", exchange=replies, routing_key="id-1")
    producer.publish("by name", exchange="", routing_key="id-1.reply")
    producer.publish("to another", exchange=replies, routing_key="id-2")
    found = Found()
    with Consumer(channel, [queue], callbacks=[found]):
        drain(asker, lambda: len(found.bodies) == 2)
        rest(asker)
    assert sorted(found.bodies) == ["by exchange", "by name"]


def test_a_queue_is_purged_and_deleted(connect: Callable[..., Any]) -> None:
    connection = connect()
    queue = Queue("purged")(connection.channel())
    queue.declare()
    producer = Producer(connection.channel())
    for number in range(5):
        producer.publish(number, exchange="", routing_key="purged")
    assert queue.purge() == 5
    assert queue.get() is None
    producer.publish("kept", exchange="", routing_key="purged")
    message = queue.get(no_ack=True)
    assert message.payload == "kept"
    queue.delete()
    session = connection.channel().session
    assert not connection.transport.thread.call(session.has_topic("purged"))


def test_a_queue_that_is_declared_again_gets_nothing_of_before(connect: Callable[..., Any]) -> None:
    connection = connect()
    exchange = Exchange("deleted-news", type="direct")
    producer = Producer(connection.channel())

    def declared() -> Any:
        queue = Queue("deleted", exchange, "key")(connection.channel())
        queue.declare()
        return queue

    def publish(body: str) -> None:
        producer.publish(body, exchange=exchange, routing_key="key", declare=[exchange])

    queue = declared()
    publish("read")
    assert queue.get(no_ack=True).payload == "read"
    publish("left")
    queue.delete()
    publish("sent without a queue")
    queue = declared()
    publish("new")
    assert queue.get(no_ack=True).payload == "new"
    assert queue.get() is None


def test_a_task_with_an_eta_waits_at_the_broker(connect: Callable[..., Any]) -> None:
    connection, queue = connect(), Queue("later")
    producer, found = Producer(connection.channel()), Found()
    queue(connection.channel()).declare()  # before the time counts
    due = datetime.now(UTC) + timedelta(seconds=3)
    headers = {"eta": due.isoformat()}
    producer.publish("later", exchange="", routing_key="later", headers=headers)
    producer.publish("now", exchange="", routing_key="later")
    arrived_at: list[datetime] = []
    with Consumer(connection.channel(), [queue], callbacks=[found]) as consumer:
        consumer.register_callback(lambda *_: arrived_at.append(datetime.now(UTC)))
        drain(connection, lambda: len(found.bodies) == 2)
    assert found.bodies == ["now", "later"]
    assert arrived_at[1] >= due - timedelta(seconds=0.1)  # brokers know whole tenths of a second


def test_a_consumer_without_acknowledgements_leaves_nothing_open(connect: Callable[..., Any]) -> None:
    connection, found = connect(), Found(acks=False)
    channel = connection.channel()
    queue = Queue("loose")(channel)
    queue.declare()
    Producer(channel).publish("once", exchange="", routing_key="loose")
    with Consumer(channel, [queue], callbacks=[found], no_ack=True):
        drain(connection, lambda: bool(found.bodies))
        until_blocking(lambda: queue.queue_declare(passive=True).message_count == 0, "it is acknowledged")


def test_higher_priorities_come_first(connect: Callable[..., Any]) -> None:
    connection = connect(priorities=True, queue_count=10)
    queue = Queue("ranked")
    producer = Producer(connection.channel())
    for priority in (1, 9, 0, 5):
        producer.publish(priority, exchange="", routing_key="ranked", priority=priority, declare=[queue])
    bound = queue(connection.channel())
    assert [bound.get(no_ack=True).payload for _ in range(4)] == [9, 5, 1, 0]


def test_only_properties_of_amqp_are_sent(connect: Callable[..., Any]) -> None:
    """Celery's signals pass objects as properties when a handler publishes again."""
    connection = connect()
    queue = Queue("plain")
    texts = "app_id", "cluster_id", "correlation_id", "message_id", "reply_to", "timestamp", "type"
    given: dict[str, Any] = dict.fromkeys((*texts, "user_id"), "text")
    given |= {"delivery_mode": 1, "expiration": "600000", "priority": 3}
    channel = connection.channel()
    message = channel.prepare_message("body", properties={**given, "sender": object()})
    queue(channel).declare()
    channel.basic_publish(message, exchange="", routing_key="plain")
    received = queue(connection.channel()).get(no_ack=True)
    of_kombu = {"body_encoding", "delivery_info", "delivery_tag"}
    assert {k: v for k, v in received.properties.items() if k not in of_kombu} == given


def test_processes_that_bind_a_queue_at_once_skip_nothing(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = Exchange("raced")
    queue = Queue("raced", exchange, "raced")
    late, early = connect().channel(), connect().channel()
    exchange(early).declare()
    admin = late.session._admin
    is_first = True

    def publish() -> None:
        Producer(early).publish("kept", exchange=exchange, routing_key="raced", declare=[queue])

    def slow(read: Callable[..., Any]) -> Callable[..., Any]:
        async def read_slowly(*arguments: Any) -> Any:
            nonlocal is_first
            found, is_first_call = await read(*arguments), is_first
            is_first = False
            if is_first_call:
                await asyncio.to_thread(publish)
            return found

        return read_slowly

    for name in ("committed_offsets", "topic_offsets"):
        monkeypatch.setattr(admin, name, slow(getattr(admin, name)))
    queue(late).declare()
    assert not is_first
    assert queue(late).get(no_ack=True).payload == "kept"


def test_expired_messages_are_dropped(connect: Callable[..., Any]) -> None:
    one = connect()
    producer = Producer(one.channel())
    for name in ("expiring", "expiring-too"):
        queue = Queue(name)
        producer.publish("expired", exchange="", routing_key=name, declare=[queue], expiration=0.001)
        producer.publish("kept", exchange="", routing_key=name, expiration=PATIENCE_S)
        if name == "expiring":
            found = Found()
            with Consumer(one.channel(), [queue], callbacks=[found]):
                drain(one, lambda found=found: bool(found.bodies))
            assert found.bodies == ["kept"]
        else:
            assert queue(one.channel()).get(no_ack=True).payload == "kept"


def test_a_dead_master_is_replaced_under_a_reader() -> None:
    with BlockingCluster(elected=True) as cluster:
        url = f"tandemmq://{cluster.name_servers}"
        with Connection(url) as one, Connection(url) as other:
            found = Found()
            queue = Queue("survives")
            producer = Producer(other.channel())
            with Consumer(one.channel(), [queue], callbacks=[found]):
                producer.publish("before", exchange="", routing_key="survives", declare=[queue])
                drain(one, lambda: bool(found.bodies))
                cluster.lose_master()
                producer.publish("after", exchange="", routing_key="survives")
                drain(one, lambda: "after" in found.bodies)


def test_a_connection_lost_between_declaration_and_sending_is_replaced(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kombu declares over a new connection then, and sends with the channel of the old one."""
    ensure_topic, failures = KombuSession.ensure_topic, iter([RequestTimeout("planted")])

    async def fail_once(session: KombuSession, topic: str) -> None:
        for failure in failures:
            raise failure
        await ensure_topic(session, topic)

    connection = connect()
    producer, queue = Producer(connection), Queue("replaced")
    closed = connection.default_channel
    monkeypatch.setattr(KombuSession, "ensure_topic", fail_once)
    policy = {"max_retries": 3, "interval_start": 0.01}
    producer.publish("x", routing_key="replaced", declare=[queue], retry=True, retry_policy=policy)
    assert queue(connection.default_channel).get(no_ack=True).payload == "x"
    with pytest.raises(connection.recoverable_connection_errors, match="the channel is closed"):
        closed.basic_publish(closed.prepare_message("late"), exchange="", routing_key="replaced")


def test_no_server_is_an_error_that_kombu_retries() -> None:
    before = set(threading.enumerate())
    connection = Connection("tandemmq://127.0.0.1:1")
    with pytest.raises(connection.connection_errors, match="no name server"):
        connection.connect()
    connection.release()
    assert set(threading.enumerate()) <= before
