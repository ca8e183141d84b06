"""Client programs on the C++ library, which a Python package contains.

Each case prints OK, or what was not so and ends with 1.
"""

import os
import sys
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, SendStatus
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CConsumeStatus, dll

COUNT = 12
WANTED = sorted(f"m-{number:02}" for number in range(COUNT))


def message(topic, number):
    made = Message(topic)
    made.set_tags("tag")
    made.set_keys(f"key-{number}")
    made.set_body(f"m-{number:02}")
    return made


def send(name_server, topic):
    producer = Producer(f"{topic}-producers")
    producer.set_namesrv_addr(name_server)
    producer.start()
    for number in range(10):
        result = producer.send_sync(message(topic, number))
        assert result.status == SendStatus.OK, result
    result = producer.send_orderly(message(topic, 10), 1)
    assert result.status == SendStatus.OK, result
    producer.send_oneway(message(topic, 11))
    return producer


def await_texts(got, wanted):
    end = time.monotonic() + 90
    while sorted(got) != wanted:
        assert time.monotonic() < end, f"wanted {wanted}\ngot    {sorted(got)}"
        time.sleep(0.02)


def push(name_server, topic, is_orderly=False):
    """A message that the listener fails for comes again."""
    got = []

    def listen(consumer, handle):
        text = RecvMessage(handle).body.decode()
        got.append(text)
        is_good = text != "m-03" or got.count(text) > 1
        return _CConsumeStatus.CONSUME_SUCCESS.value if is_good else _CConsumeStatus.RECONSUME_LATER.value

    consumer = PushConsumer(f"{topic}-group", orderly=is_orderly)
    consumer.set_namesrv_addr(name_server)
    # The package's own `subscribe` lets no listener say that it failed.
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"tag || other"))
    consumer._register_callback(listen)
    producer = send(name_server, topic)
    consumer.start()
    await_texts(got, sorted([*WANTED, "m-03"]))
    consumer.shutdown()
    producer.shutdown()


def orderly(name_server, topic):
    push(name_server, topic, is_orderly=True)


def pull(name_server, topic):
    producer = send(name_server, topic)
    consumer = PullConsumer(f"{topic}-group")
    consumer.set_namesrv_addr(name_server)
    consumer.start()
    got = []
    end = time.monotonic() + 60
    while sorted(got) != WANTED:
        assert time.monotonic() < end, f"wanted {WANTED}\ngot    {sorted(got)}"
        got.extend(found.body.decode() for found in consumer.pull(topic))
    consumer.shutdown()
    producer.shutdown()


if __name__ == "__main__":
    try:
        {"pull": pull, "push": push, "orderly": orderly}[sys.argv[1]](sys.argv[2], sys.argv[3])
    except BaseException as failure:  # noqa: BLE001
        print(repr(failure), flush=True)
        os._exit(1)
    print("OK", flush=True)
    # The library's threads must not hold the program.
    os._exit(0)
