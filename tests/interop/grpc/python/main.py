"""Cases of the official Python client: each prints OK, or says what was wrong and ends with 1.

`python main.py CASE ENDPOINT TOPIC`; the consumer groups are named after the topic.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

PATIENCE_S = 60
POLL_S = 5
ALL = FilterExpression()


class Peer:
    """The proxy under test, one topic, and the clients of one case."""

    def __init__(self, endpoint: str, topic: str, *, tls: bool = False, secret: str | None = None) -> None:
        key = os.environ.get("PEER_ACCESS_KEY", "")
        secret = os.environ.get("PEER_SECRET_KEY", "") if secret is None else secret
        self.configuration = ClientConfiguration(endpoint, Credentials(key, secret), request_timeout=10)
        self.topic = topic
        self.group = f"{topic}-group"
        self.tls = tls

    def producer(self, checker: TransactionChecker | None = None, topic: str | None = None) -> Producer:
        producer = Producer(self.configuration, (topic or self.topic,), checker=checker, tls_enable=self.tls)
        producer.startup()
        return producer

    def simple(
        self, group: str | None = None, topic: str | None = None, expression: FilterExpression = ALL
    ) -> SimpleConsumer:
        consumer = SimpleConsumer(
            self.configuration,
            group or self.group,
            {topic or self.topic: expression},
            POLL_S,
            tls_enable=self.tls,
        )
        consumer.startup()
        if os.environ.get("PEER_PROXY") != "ours":
            # RocketMQ's proxy refuses to receive before the settings, for which this client does not wait.
            assert consumer._init_settings_event.wait(PATIENCE_S)
        return consumer

    def push(self, consume: Callable[[Message], bool]) -> PushConsumer:
        class Listener(MessageListener):
            def consume(self, message: Message) -> ConsumeResult:
                return ConsumeResult.SUCCESS if consume(message) else ConsumeResult.FAILURE

        consumer = PushConsumer(
            self.configuration, self.group, Listener(), {self.topic: ALL}, tls_enable=self.tls
        )
        consumer.startup()
        return consumer

    def message(self, text: str, **fields: object) -> Message:
        message = Message()
        message.topic = self.topic
        message.body = text.encode()
        for name, value in fields.items():
            setattr(message, name, value)
        return message


class Checker(TransactionChecker):
    """Commits what begins with `commit`, and rolls back the rest."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def check(self, message: Message) -> TransactionResolution:
        self.seen.add(text_of(message))
        good = text_of(message).startswith("commit")
        return TransactionResolution.COMMIT if good else TransactionResolution.ROLLBACK


class Tries:
    """The deliveries that a listener has seen, in order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: list[str] = []

    def count(self, text: str) -> int:
        """Records one delivery; returns the number of deliveries of this text."""
        with self.lock:
            self.all.append(text)
            return self.all.count(text)


def text_of(message: Message) -> str:
    return message.body.decode()


def same(found: object, wanted: object, what: str) -> None:
    assert found == wanted, f"{what}: expected {wanted}, got {found}"


def until(condition: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what()}"
        time.sleep(0.02)


def receive(consumer: SimpleConsumer, count: int, *, invisible: int = 30, batch: int = 16) -> list[Message]:
    """Receives and acknowledges until `count` messages have arrived."""
    got: list[Message] = []
    end = time.monotonic() + PATIENCE_S
    while len(got) < count:
        assert time.monotonic() < end, f"expected {count} messages, got {[text_of(one) for one in got]}"
        for message in consumer.receive(batch, invisible):
            consumer.ack(message)
            got.append(message)
    return got


def assert_drained(consumer: SimpleConsumer) -> None:
    """One whole poll without a message."""
    same([text_of(message) for message in consumer.receive(16, 30)], [], "messages left")


def assert_refused(body: Callable[[], object], *, names: Iterable[str] = ()) -> None:
    try:
        body()
    except Exception as error:  # noqa: BLE001  # the client raises what it likes
        words = f"{type(error).__name__} {error}".lower()
        assert any(name in words for name in names), f"refused with other words: {words}"
        return
    raise AssertionError("was not refused")


def normal(peer: Peer) -> None:
    producer, consumer = peer.producer(), peer.simple()
    for number in range(12):
        message = peer.message(f"m-{number:02}", tag="tag", keys=f"key-{number}")
        message.add_property("number", str(number))
        same(len(producer.send(message).message_id), 34, "length of a message id")
    got = receive(consumer, 12)
    same(sorted(text_of(message) for message in got), [f"m-{number:02}" for number in range(12)], "bodies")
    for message in got:
        number = int(text_of(message)[2:])
        facts = message.tag, set(message.keys), dict(message.properties), message.delivery_attempt
        same(facts, ("tag", {f"key-{number}"}, {"number": str(number)}, 1), "message")
        assert not message.corrupted
        assert abs(message.born_timestamp / 1000 - time.time()) < 300
    assert_drained(consumer)
    producer.shutdown()
    consumer.shutdown()


def transport(peer: Peer) -> None:
    """The client uses plaintext by default; with TLS it verifies the certificate."""
    peer.tls = True
    normal(peer)


def fifo(peer: Peer) -> None:
    producer, consumer = peer.producer(), peer.simple()
    for number in range(6):
        for group in "ab":
            producer.send(peer.message(f"{group}-{number}", message_group=group))
    got = receive(consumer, 12)
    for group in "ab":
        found = [text_of(message) for message in got if message.message_group == group]
        same(found, [f"{group}-{number}" for number in range(6)], "order")


def fifo_push(peer: Peer) -> None:
    """A message that fails once is tried again before the next of its group."""
    tries = Tries()
    peer.push(lambda message: tries.count(text_of(message)) > 1 or text_of(message) != "a-2")
    producer = peer.producer()
    for number in range(6):
        for group in "ab":
            producer.send(peer.message(f"{group}-{number}", message_group=group))
    until(lambda: len(tries.all) >= 13, lambda: f"13 deliveries, got {tries.all}")
    wanted = ["a-0", "a-1", "a-2", "a-2", "a-3", "a-4", "a-5"]
    same([text for text in tries.all if text[0] == "a"], wanted, "order of a")
    same([text for text in tries.all if text[0] == "b"], [f"b-{number}" for number in range(6)], "order of b")


def delay(peer: Peer) -> None:
    producer, consumer = peer.producer(), peer.simple()
    start = int(time.time())  # the client takes seconds
    for wait in (6, 3):
        producer.send(peer.message(f"{wait}", delivery_timestamp=start + wait))
    for wait in (3, 6):
        same([text_of(message) for message in receive(consumer, 1)], [f"{wait}"], "message")
        assert time.time() - start >= wait - 1, f"after {time.time() - start} s already"


def recall(peer: Peer) -> None:
    producer, consumer = peer.producer(), peer.simple()
    at = int(time.time()) + 6
    receipt = producer.send(peer.message("recalled", delivery_timestamp=at))
    producer.send(peer.message("kept", delivery_timestamp=at + 1))
    same(producer.recall_message(peer.topic, receipt.recall_handle), receipt.message_id, "recalled message")
    same([text_of(message) for message in receive(consumer, 1)], ["kept"], "messages")
    assert_drained(consumer)


def transaction(peer: Peer) -> None:
    checker = Checker()
    producer, consumer = peer.producer(checker), peer.simple()
    for text in ("rolled back", "committed"):
        open_transaction = producer.begin_transaction()
        producer.send(peer.message(text, tag="tag"), open_transaction)
        (open_transaction.commit if text == "committed" else open_transaction.rollback)()
    same([text_of(message) for message in receive(consumer, 1)], ["committed"], "messages")
    assert_drained(consumer)
    same(checker.seen, set(), "checks of ended transactions")


def check(peer: Peer) -> None:
    """The broker asks for the outcome of transactions that were never ended."""
    checker = Checker()
    producer, consumer = peer.producer(checker), peer.simple()
    for text in ("rollback later", "commit later"):
        producer.send(peer.message(text), producer.begin_transaction())
    same([text_of(message) for message in receive(consumer, 1)], ["commit later"], "messages")
    until(lambda: len(checker.seen) == 2, lambda: f"two checks, got {checker.seen}")
    # A broker may ask twice, and then delivers what was committed twice.
    assert {text_of(message) for message in consumer.receive(16, 30)} <= {"commit later"}


def priority(peer: Peer) -> None:
    producer, consumer = peer.producer(), peer.simple()
    for level in (1, 3, 2):
        producer.send(peer.message(f"{level}", priority=level))
    got = receive(consumer, 3, batch=1)
    same([(text_of(one), one.priority) for one in got], [("3", 3), ("2", 2), ("1", 1)], "order")


def invisible(peer: Peer) -> None:
    producer, consumer = peer.producer(), peer.simple()
    producer.send(peer.message("again"))
    got: list[Message] = []
    until(lambda: bool(got.extend(consumer.receive(1, 40)) or got), lambda: "a message")
    start = time.monotonic()
    consumer.change_invisible_duration(got[0], 2)
    (second,) = receive(consumer, 1)
    assert 1 <= time.monotonic() - start < 30, f"came again after {time.monotonic() - start} s"
    same((text_of(second), second.delivery_attempt), ("again", 2), "second delivery")
    assert_drained(consumer)


def push(peer: Peer) -> None:
    """A listener's failure brings the message again, with a higher count."""
    seen: dict[str, list[int]] = {}

    def consume(message: Message) -> bool:
        seen.setdefault(text_of(message), []).append(message.delivery_attempt)
        return text_of(message) != "m-03" or message.delivery_attempt > 1

    consumer = peer.push(consume)
    producer = peer.producer()
    for number in range(20):
        producer.send(peer.message(f"m-{number:02}"))
    until(lambda: len(seen) == 20 and len(seen["m-03"]) == 2, lambda: f"got {seen}")
    same(seen, {f"m-{number:02}": [1, 2] if number == 3 else [1] for number in range(20)}, "deliveries")
    producer.shutdown()
    consumer.shutdown()


def dead(peer: Peer) -> None:
    """A group with one retry: a message that fails twice is in the dead letter queue."""
    tries = Tries()
    peer.push(lambda message: tries.count(text_of(message)) < 0 or text_of(message) != "bad")
    producer = peer.producer()
    for text in ("good", "bad", "fine"):
        producer.send(peer.message(text))
    letters = peer.simple(f"{peer.topic}-letters", f"%DLQ%{peer.group}")
    same([text_of(message) for message in receive(letters, 1)], ["bad"], "dead letters")
    same(sorted(tries.all), ["bad", "bad", "fine", "good"], "deliveries")


def fifo_dead(peer: Peer) -> None:
    """The client itself sends an ordered message to the dead letter queue, and consumes the next."""
    tries = Tries()
    peer.push(lambda message: tries.count(text_of(message)) < 0 or text_of(message) != "a-1")
    producer = peer.producer()
    for number in range(4):
        producer.send(peer.message(f"a-{number}", message_group="a"))
    wanted = ["a-0", "a-1", "a-1", "a-2", "a-3"]
    until(lambda: len(tries.all) >= len(wanted), lambda: f"{wanted}, got {tries.all}")
    same(tries.all, wanted, "deliveries")
    letters = peer.simple(f"{peer.topic}-letters", f"%DLQ%{peer.group}")
    same([text_of(message) for message in receive(letters, 1)], ["a-1"], "dead letters")


def filters(peer: Peer) -> None:
    by_tag = peer.simple(f"{peer.topic}-tag", expression=FilterExpression("a||b"))
    sql = FilterExpression("n >= 4 AND TAGS <> 'c'", FilterType.SQL)
    by_sql = peer.simple(f"{peer.topic}-sql", expression=sql)
    producer = peer.producer()
    for number in range(9):
        message = peer.message(f"{number}", tag="abc"[number % 3])
        message.add_property("n", str(number))
        producer.send(message)
    for consumer, wanted in ((by_tag, "013467"), (by_sql, "467")):
        same("".join(sorted(text_of(one) for one in receive(consumer, len(wanted)))), wanted, "messages")
        assert_drained(consumer)


def refused(peer: Peer) -> None:
    """A missing topic and a message of the wrong kind are refused, the topic when it is first used."""
    producer, missing = peer.producer(), Peer(endpoint, f"{peer.topic}-missing")
    assert_refused(lambda: producer.send(missing.message("x")), names=("route",))
    assert_refused(lambda: producer.send(peer.message("x", message_group="group")), names=("type",))
    missing_consumer = SimpleConsumer(peer.configuration, peer.group, {missing.topic: ALL}, POLL_S)
    missing_consumer.startup()
    assert_refused(lambda: missing_consumer.receive(1, 30), names=("route",))
    producer.send(peer.message("the client still works"))


def acl(peer: Peer) -> None:
    normal(peer)
    stranger = Peer(endpoint, peer.topic, secret="another secret")
    # This client logs why it got no route, and raises only that it has none.
    names = ("unauthorized", "40100", "route")
    assert_refused(lambda: stranger.producer().send(stranger.message("x")), names=names)
    forbidden = Peer(endpoint, "forbidden")
    assert_refused(lambda: forbidden.producer().send(forbidden.message("x")), names=names)


CASES = {
    case.__name__: case
    for case in (
        *(normal, transport, fifo, fifo_push, delay, recall, transaction, check, priority),
        *(invisible, push, dead, fifo_dead, filters, refused, acl),
    )
}

if __name__ == "__main__":
    name, endpoint, topic = sys.argv[1:4]
    try:
        CASES[name](Peer(endpoint, topic))
    except BaseException as failure:  # noqa: BLE001  # whatever it is, it ends the program
        print(f"{type(failure).__name__}: {failure}", flush=True)
        os._exit(1)
    # The client's threads may outlive a shutdown, and are not what is tested here.
    print("OK", flush=True)
    os._exit(0)
