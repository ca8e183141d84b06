"""Our clients inside a network: `python network_client.py CASE NAME_SERVER TOPIC`, prints OK or ends with 1.

`stay` prints SENDING, and sends until its input ends; then it reads everything that was acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from tandemmq.client import (
    Admin,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)

COUNT = 200
PATIENCE_S = 60.0


async def read(name_server: str, topic: str, wanted: set[bytes]) -> None:
    """Receives until every wanted body came."""
    consumer = Consumer(f"{topic}-group", name_server, options=ConsumerOptions(start_from=StartFrom.FIRST))
    consumer.subscribe(topic)
    missing = set(wanted)
    async with consumer, asyncio.timeout(PATIENCE_S):
        while missing:
            for message in await consumer.poll():
                missing.discard(bytes(message.body))
                consumer.ack(message)


async def produce_and_consume(name_server: str, topic: str) -> None:
    bodies = [b"m-%d" % number for number in range(COUNT)]
    async with Producer(f"{topic}-producer", name_server) as producer:
        sent = [await producer.send(Message(topic=topic, body=body)) for body in bodies]
    await read(name_server, topic, set(bodies))
    # The id contains an address that this network does not reach.
    async with Admin(name_server) as admin:
        record = await admin.find_by_id(sent[7].message_id)
        assert record is not None, sent[7].message_id
        assert record.body == bodies[7], record.body
    print(f"id of {len(sent[7].message_id) // 2} bytes found", flush=True)


async def transaction_check(name_server: str, topic: str) -> None:
    async def check(_: object) -> TransactionState:
        return TransactionState.COMMIT

    producer = TransactionProducer(f"{topic}-checked", name_server, check=check)
    async with producer:
        await producer.send(Message(topic=topic, body=b"checked"), lambda _: TransactionState.UNKNOWN)
        await read(name_server, topic, {b"checked"})


async def request_and_reply(name_server: str, topic: str) -> None:
    async with Producer(f"{topic}-asker", name_server) as asker:
        await asker.send(Message(topic=topic, body=b"makes the topic"))
        answerer = Producer(f"{topic}-answerer", name_server)

        async def answer(message: ReceivedMessage) -> None:
            if message.body == b"ask":
                await answerer.reply(message, b"answer")

        consumer = PushConsumer(f"{topic}-replies", name_server, handler=answer)
        consumer.subscribe(topic)
        async with answerer, consumer:
            reply = await asker.request(Message(topic=topic, body=b"ask"), timeout_s=PATIENCE_S)
            assert reply.body == b"answer", reply.body


async def stay(name_server: str, topic: str) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    stored: set[bytes] = set()
    options = ProducerOptions(timeout_s=PATIENCE_S)
    async with Producer(f"{topic}-producer", name_server, options=options) as producer:

        async def send() -> None:
            body = b"s-%d" % len(stored)
            await producer.send(Message(topic=topic, body=body))
            stored.add(body)

        while not ended.is_set():
            await send()
            if len(stored) == 20:
                print("SENDING", flush=True)
            await asyncio.sleep(0.01)
        for _ in range(20):
            await send()
    await read(name_server, topic, stored)
    print(f"{len(stored)} stored and read", flush=True)


def spark(name_server: str, topic: str) -> None:
    from tandemmq.spark.session import build_session

    session = build_session("networks", "local[1]")
    places = {"nameServer": name_server, "topic": topic}
    begin = session.read.format("tandemmq").options(**places).load()
    count = begin.count()
    assert count >= COUNT, count
    begin.limit(10).select("body").write.format("tandemmq").options(**places).mode("append").save()
    # A frame keeps the offsets of its first reading.
    end = session.read.format("tandemmq").options(**places).load().count()
    assert end >= count + 10, end
    session.stop()


async def prepare(name_server: str, topic: str) -> None:
    """Makes a topic for clients of the gRPC protocol."""
    async with Admin(name_server) as admin:
        await admin.create_topic(topic, attributes={"+message.type": "NORMAL"})


async def show_master(name_server: str, _: str) -> None:
    print(f"MASTER {await master_of(name_server)}", flush=True)


async def await_another_master(name_server: str, former: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await master_of(name_server) in ("", former):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def master_of(name_server: str) -> str:
    async with Admin(name_server) as admin:
        brokers = (await admin.cluster_info()).brokers
    return brokers["broker-a"].addresses.get(0, "") if brokers else ""


CASES = {
    "master": show_master,
    "moved": await_another_master,
    "prepare": prepare,
    "clients": produce_and_consume,
    "check": transaction_check,
    "reply": request_and_reply,
    "stay": stay,
}

if __name__ == "__main__":
    case, name_server, topic = sys.argv[1:]
    if case == "spark":
        spark(name_server, topic)
    else:
        asyncio.run(CASES[case](name_server, topic))
    print("OK", flush=True)
