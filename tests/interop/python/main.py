"""Client programs in Python, over the gRPC protocol.

Each case prints OK, or what was not so and ends with 1.
"""

import os
import sys
import time

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
)
from rocketmq.v5.exception import InternalErrorException

COUNT = 12
WANTED = [f"m-{number:02}" for number in range(COUNT)]


def at(proxy):
    return ClientConfiguration(proxy, Credentials(), request_timeout=20)


def send(proxy, topic):
    producer = Producer(at(proxy), (topic,))
    producer.startup()
    for number in range(COUNT):
        message = Message()
        message.topic = topic
        message.body = f"m-{number:02}".encode()
        message.tag = "tag"
        message.keys = f"key-{number}"
        assert producer.send(message).message_id
    return producer


def simple(proxy, topic):
    producer = send(proxy, topic)
    consumer = SimpleConsumer(at(proxy), f"{topic}-group", {topic: FilterExpression("tag")}, await_duration=5)
    consumer.startup()
    got = []
    end = time.monotonic() + 90
    while len(got) < COUNT and time.monotonic() < end:
        for message in receive(consumer):
            got.append(message.body.decode())
            consumer.ack(message)
    assert sorted(got) == WANTED, f"wanted {WANTED}\ngot    {sorted(got)}"
    consumer.shutdown()
    producer.shutdown()


def receive(consumer):
    """One receive. The client does not wait for its settings to reach the proxy, which fails without them."""
    try:
        return consumer.receive(16, 30) or ()
    except InternalErrorException as failure:
        if '"settings" is null' not in str(failure):
            raise
        time.sleep(0.2)
        return ()


class Listener(MessageListener):
    """A message that it fails for comes again."""

    def __init__(self):
        self.got = []

    def consume(self, message):
        text = message.body.decode()
        self.got.append(text)
        if text == "m-03" and self.got.count(text) == 1:
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


def push(proxy, topic):
    listener = Listener()
    consumer = PushConsumer(at(proxy), f"{topic}-group", listener, {topic: FilterExpression("tag")})
    consumer.startup()
    producer = send(proxy, topic)
    end = time.monotonic() + 90
    wanted = sorted([*WANTED, "m-03"])
    while sorted(listener.got) != wanted:
        assert time.monotonic() < end, f"wanted {wanted}\ngot    {sorted(listener.got)}"
        time.sleep(0.02)
    consumer.shutdown()
    producer.shutdown()


if __name__ == "__main__":
    try:
        {"simple": simple, "push": push}[sys.argv[1]](sys.argv[2], sys.argv[3])
    except BaseException as failure:  # noqa: BLE001
        print(repr(failure), flush=True)
        os._exit(1)
    print("OK", flush=True)
    os._exit(0)
