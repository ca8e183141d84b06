"""The cases that FastStream asks of every broker, each on the test broker and on a real cluster: consuming,
publishing, routers, middlewares, parsers, codecs, requests.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Annotated, Any

import fastapi
import httpx
import pytest
from fastapi import FastAPI
from faststream import (
    BaseMiddleware,
    Context,
    Depends,
    ExceptionMiddleware,
    FastStream,
    Header,
    Response,
    TestApp,
)
from faststream._internal.parser import DefaultCodec
from faststream.asgi import AsgiFastStream, make_ping_asgi
from faststream_fastapi import FastStreamAPI
from pydantic import BaseModel

from tandemmq.client import ClientOptions
from tandemmq.integrations.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQPublisher,
    RocketMQRoute,
    RocketMQRouter,
    TestRocketMQBroker,
)
from tandemmq.testing import BlockingCluster
from waits import PATIENCE_S

FAST = ClientOptions(route_refresh_s=0.3, heartbeat_s=1.0)
NUMBERS = count()
NOW = datetime.now(UTC)


class Model(BaseModel):
    name: str


@dataclass
class Plain:
    name: str


class Stage:
    """Makes brokers and runs them, in memory or on a cluster. `heard` is filled by handlers."""

    def __init__(self, cluster: BlockingCluster | None) -> None:
        self._cluster = cluster
        self.topic = f"cases-{next(NUMBERS)}"
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    def broker(self, **options: Any) -> RocketMQBroker:
        name_servers = self._cluster.name_servers if self._cluster else "127.0.0.1:9876"
        return RocketMQBroker(name_servers, client=FAST, logger=None, **options)

    @asynccontextmanager
    async def running(self, *brokers: RocketMQBroker, starts: bool = True) -> AsyncIterator[None]:
        if self._cluster is None:
            async with TestRocketMQBroker(*brokers):
                yield
            return
        async with AsyncExitStack() as stack:
            for broker in brokers:
                await stack.enter_async_context(broker)
                if starts:
                    await broker.start()
            yield

    async def hears(self, *expected: Any) -> None:
        """Waits for these messages, in any order."""
        async with asyncio.timeout(PATIENCE_S):
            found = [await self.heard.get() for _ in expected]
        for one in expected:
            found.remove(one)
        assert not found
        assert self.heard.empty()

    def listen(self, to: Any, topic: str, **options: Any) -> None:
        """Registers a handler that notes what it gets."""

        @to.subscriber(topic, **options)
        async def note(body: Any) -> None:
            await self.heard.put(body)


@pytest.fixture(scope="module")
def cluster() -> Iterator[BlockingCluster]:
    # Not that of the session: other tests of this process count the threads of clients.
    with BlockingCluster() as cluster:
        yield cluster


@pytest.fixture(params=["memory", "cluster"])
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(request.getfixturevalue("cluster") if request.param == "cluster" else None)


# Consuming


async def test_one_handler_hears_two_topics_and_each_message(stage: Stage) -> None:
    broker = stage.broker()

    @broker.subscriber(stage.topic)
    @broker.subscriber(stage.topic + "-b")
    async def handle(body: str) -> None:
        await stage.heard.put(body)

    async with stage.running(broker):
        await asyncio.gather(*(broker.publish("a", stage.topic + end) for end in ("", "", "-b")))
        await stage.hears("a", "a", "a")


async def test_handlers_of_one_subscriber_are_chosen_by_filters(stage: Stage) -> None:
    broker = stage.broker()
    subscriber = broker.subscriber(stage.topic)

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def json(body: Any) -> None:
        await stage.heard.put(("json", body))

    @subscriber
    def text(body: Any) -> None:
        stage.heard.put_nowait(("text", body))

    async with stage.running(broker):
        await broker.publish({"a": 1}, stage.topic)
        await broker.publish("b", stage.topic)
        await stage.hears(("json", {"a": 1}), ("text", "b"))


async def test_nothing_is_validated_without_a_serializer(stage: Stage) -> None:
    broker = stage.broker(serializer=None)

    @broker.subscriber(stage.topic)
    async def handle(body: Model, number: int = Depends(lambda: "100"), broker: Any = Context()) -> None:
        await stage.heard.put((body, number, broker.running))

    async with stage.running(broker):
        await broker.publish({"name": "x"}, stage.topic)
        await stage.hears(({"name": "x"}, "100", broker.running))


async def test_a_subscriber_is_added_to_a_running_broker(stage: Stage) -> None:
    broker = stage.broker()
    async with stage.running(broker):
        subscriber = broker.subscriber(stage.topic)

        @subscriber
        async def handle(body: str) -> None:
            await stage.heard.put(body)

        await subscriber.start()
        await broker.publish("late", stage.topic)
        await stage.hears("late")
        await subscriber.stop()


async def test_a_subscriber_with_handlers_is_not_read(stage: Stage) -> None:
    broker = stage.broker()
    subscriber = broker.subscriber(stage.topic)
    subscriber(lambda body: None)
    async with stage.running(broker):
        with pytest.raises(AssertionError, match="its handlers get the messages"):
            await subscriber.get_one(timeout=0.01)


async def test_two_brokers_of_one_application(stage: Stage) -> None:
    one, other = stage.broker(), stage.broker(group="others")

    @one.subscriber(stage.topic)
    @other.publisher(stage.topic + "-out")
    async def relay(body: str) -> str:
        return body

    stage.listen(one, stage.topic + "-out")
    async with stage.running(one, other, starts=False), TestApp(FastStream(one, other)):
        await one.publish("a", stage.topic)
        await stage.hears("a")


# Publishing


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ("hello", str, "hello"),
        (b"hello", bytes, b"hello"),
        (1, int, 1),
        (1, float, 1.0),
        (1.5, float, 1.5),
        (False, bool, False),
        ({"m": 1}, dict[str, int], {"m": 1}),
        ([1, 2], list[int], [1, 2]),
        (NOW, datetime, NOW),
        (b'{"name":"x"}', Plain, Plain("x")),
        (Plain("x"), Plain, Plain("x")),
        (Plain("x"), dict, {"name": "x"}),
        ({"name": "x"}, Plain, Plain("x")),
        (b'{"name":"x"}', Model, Model(name="x")),
        (Model(name="x"), Model, Model(name="x")),
        (Model(name="x"), dict, {"name": "x"}),
    ],
)
async def test_bodies_are_serialized(stage: Stage, body: Any, kind: Any, expected: Any) -> None:
    broker = stage.broker()

    @broker.subscriber(stage.topic)
    async def handle(body: kind) -> None:
        await stage.heard.put(body)

    async with stage.running(broker):
        await broker.publish(body, stage.topic)
        await stage.hears(expected)


async def test_bodies_are_unpacked_into_arguments(stage: Stage) -> None:
    broker = stage.broker()

    @broker.subscriber(stage.topic)
    async def mapping(a: int, b: int) -> None:
        await stage.heard.put((a, b))

    @broker.subscriber(stage.topic + "-list")
    async def sequence(a: int, b: int, *rest: tuple[int, ...]) -> None:
        await stage.heard.put((a, b, rest))

    async with stage.running(broker):
        await broker.publish({"a": 1, "b": 2.0}, stage.topic)
        await broker.publish([1, 2.0, 3.0, 4.0], stage.topic + "-list")
        await stage.hears((1, 2), (1, 2, (3, 4)))


async def test_a_response_carries_headers_and_its_correlation_id(stage: Stage) -> None:
    broker = stage.broker()

    @broker.subscriber(stage.topic)
    @broker.publisher(stage.topic + "-out")
    async def answer() -> Response:
        return Response(1, headers={"custom": "1"}, correlation_id="own")

    @broker.subscriber(stage.topic + "-out")
    async def note(message: RocketMQMessage) -> None:
        await stage.heard.put((message.body, message.headers["custom"], message.correlation_id))

    async with stage.running(broker):
        await broker.publish(None, stage.topic)
        await stage.hears((b"1", "1", "own"))


async def test_publishers_in_every_position(stage: Stage) -> None:
    broker = stage.broker()
    first, second, third = (broker.publisher(f"{stage.topic}-{number}") for number in range(3))

    @first
    @broker.subscriber(stage.topic)
    @second
    async def handle() -> str:
        await third.publish("")
        return ""

    @first
    @broker.subscriber(stage.topic + "-again")
    async def again() -> str:
        return "again"

    for number in range(3):
        stage.listen(broker, f"{stage.topic}-{number}")
    async with stage.running(broker):
        await broker.publish("", stage.topic)
        await broker.publish("", stage.topic + "-again")
        await broker.publisher(stage.topic + "-2").publish("after the start")
        await stage.hears("", "", "", "again", "after the start")


async def test_answers_go_to_reply_to_unless_the_subscriber_gives_none(stage: Stage) -> None:
    broker = stage.broker()

    @broker.subscriber(stage.topic)
    async def echo(body: str) -> str:
        return body

    @broker.subscriber(stage.topic + "-mute", no_reply=True)
    async def mute(body: str) -> str:
        await stage.heard.put("mute")
        return body

    stage.listen(broker, stage.topic + "-answers")
    async with stage.running(broker):
        await broker.publish("no", stage.topic + "-mute", reply_to=stage.topic + "-answers")
        await broker.publish("yes", stage.topic, reply_to=stage.topic + "-answers")
        await stage.hears("mute", "yes")


# Routers


async def test_prefixes_of_nested_routers(stage: Stage) -> None:
    async def upper(body: str) -> str:
        return body.upper()

    route = RocketMQRoute(upper, "in", publishers=[RocketMQPublisher("out")])
    inner = RocketMQRouter(f"{stage.topic}-inner-", handlers=[route])
    outer = RocketMQRouter("outer-", routers=[inner])
    publisher = inner.publisher("in")
    broker = stage.broker()
    broker.include_router(outer, prefix="shop-")
    stage.listen(broker, f"shop-outer-{stage.topic}-inner-out")
    async with stage.running(broker):
        await broker.publish("a", f"shop-outer-{stage.topic}-inner-in")
        await publisher.publish("b")
        await stage.hears("A", "B")


async def test_a_router_may_be_given_to_the_broker_and_shares_its_producer(stage: Stage) -> None:
    routers = [RocketMQRouter(), RocketMQRouter()]
    publishers = [router.publisher(stage.topic) for router in routers]
    assert publishers[0]._outer_config.producer is not publishers[1]._outer_config.producer
    stage.listen(routers[0], stage.topic)
    broker = stage.broker(routers=routers)
    assert publishers[0]._outer_config.producer is publishers[1]._outer_config.producer
    async with stage.running(broker):
        await publishers[1].publish("a")
        await stage.hears("a")


# Middlewares


class Doubling(BaseMiddleware):
    """Doubles bodies when they are received, handled and published."""

    async def on_receive(self) -> None:
        self.msg.body = self.msg.body * 2
        return await super().on_receive()

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body = msg.body * 2
        return await call_next(msg)


async def test_middlewares_surround_handling_and_publishing(stage: Stage) -> None:
    events: list[str] = []

    def marking(name: str) -> type[BaseMiddleware]:
        class Mark(BaseMiddleware):
            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                events.append(f"{name} before")
                try:
                    return await call_next(msg)
                finally:
                    events.append(f"{name} after")

            async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
                cmd.headers["by"] = cmd.headers.get("by", "") + name
                return await call_next(cmd)

        return Mark

    broker = stage.broker(middlewares=[marking("b")])
    broker.add_middleware(marking("c"))
    broker.insert_middleware(marking("a"))
    router = RocketMQRouter(middlewares=[marking("d")])

    @router.subscriber(stage.topic)
    async def handle(message: RocketMQMessage) -> None:
        await stage.heard.put(message.headers["by"])

    broker.include_router(router)
    async with stage.running(broker):
        await broker.publish("x", stage.topic)
        await stage.hears("abc")
    assert events[:4] == ["a before", "b before", "c before", "d before"]


async def test_errors_reach_middlewares_and_may_become_results(stage: Stage) -> None:
    handlers = ExceptionMiddleware()

    @handlers.add_handler(ValueError, publish=True)
    def explain(error: ValueError) -> str:
        return f"sorry: {error}"

    broker = stage.broker(middlewares=[handlers])

    @broker.subscriber(stage.topic)
    @broker.publisher(stage.topic + "-out")
    async def fail(body: str) -> str:
        raise ValueError(body)

    stage.listen(broker, stage.topic + "-out")
    async with stage.running(broker):
        await broker.publish("closed", stage.topic)
        await stage.hears("sorry: closed")


# Parsers, decoders and codecs


async def test_the_nearest_parser_and_decoder_are_used(stage: Stage) -> None:
    def parser(name: str) -> Any:
        async def parse(message: Any, original: Any) -> Any:
            parsed = await original(message)
            parsed.headers["parser"] = name
            return parsed

        return parse

    def decoder(name: str) -> Any:
        async def decode(message: Any, original: Any) -> Any:
            return f"{await original(message)} {message.headers['parser']} {name}"

        return decode

    broker = stage.broker(parser=parser("broker"), decoder=decoder("broker"))
    router = RocketMQRouter(parser=parser("router"), decoder=decoder("router"))
    stage.listen(broker, stage.topic + "-broker")
    stage.listen(router, stage.topic + "-router")
    stage.listen(router, stage.topic + "-own", parser=parser("own"), decoder=decoder("own"))
    broker.include_router(router)
    async with stage.running(broker):
        for end in ("broker", "router", "own"):
            await broker.publish("x", f"{stage.topic}-{end}")
        await stage.hears("x broker broker", "x router router", "x own own")


class Shifted(DefaultCodec):
    """Reverses the bytes of bodies."""

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        payload, kind = await super().encode(msg, serializer)
        return payload[::-1], kind

    async def decode(self, msg: Any) -> Any:
        return msg.body[::-1].decode()


class ShiftedBatches(Shifted):
    async def encode_batch(self, msgs: Any, serializer: Any = None) -> list[tuple[bytes, str | None]]:
        return [await self.encode(one, serializer) for one in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        return [one[::-1].decode() for one in msg.body]


async def test_codecs_of_broker_and_subscriber(stage: Stage) -> None:
    broker = stage.broker(codec=ShiftedBatches())
    stage.listen(broker, stage.topic)
    stage.listen(broker, stage.topic, group=stage.topic + "-raw", codec=DefaultCodec())
    async with stage.running(broker):
        await broker.publish("abc", stage.topic)
        await stage.hears("abc", "cba")


async def test_codecs_of_batches(stage: Stage) -> None:
    broker = stage.broker(codec=ShiftedBatches())
    heard: set[str] = set()
    complete = asyncio.Event()

    @broker.subscriber(stage.topic, batch=True)
    async def note(bodies: list[str]) -> None:
        heard.update(bodies)
        if len(heard) == 3:
            complete.set()

    async with stage.running(broker):
        await broker.publish_batch("ab", "cd", "ef", topic=stage.topic)
        await asyncio.wait_for(complete.wait(), PATIENCE_S)
    assert heard == {"ab", "cd", "ef"}


async def test_a_codec_excludes_a_decoder_and_must_know_batches(stage: Stage) -> None:
    both, single = stage.broker(), stage.broker(codec=Shifted())
    stage.listen(both, stage.topic, codec=Shifted(), decoder=lambda message: message)
    stage.listen(single, stage.topic, batch=True)
    for broker, text in ((both, "codec"), (single, "BatchCodecProto")):
        with pytest.raises(ValueError, match=text):
            async with stage.running(broker):
                pass


# Requests


async def test_requests_by_broker_publisher_and_router(stage: Stage) -> None:
    broker, router = stage.broker(), RocketMQRouter()
    publisher, routed = broker.publisher(stage.topic), router.publisher(stage.topic)
    broker.include_router(router)

    @broker.subscriber(stage.topic)
    async def answer(body: Any) -> str:
        return "answer"

    async with stage.running(broker):
        replies = [
            await broker.request(None, stage.topic, timeout=PATIENCE_S, correlation_id="1"),
            await publisher.request(None, timeout=PATIENCE_S, correlation_id="1"),
            await routed.request(None, timeout=PATIENCE_S, correlation_id="1"),
        ]
        assert [(await one.decode(), one.correlation_id) for one in replies] == [("answer", "1")] * 3


async def test_middlewares_see_requests_and_replies(stage: Stage) -> None:
    broker = stage.broker(middlewares=[Doubling])

    @broker.subscriber(stage.topic)
    async def echo(body: str) -> str:
        return body

    async with stage.running(broker):
        reply = await broker.request("x", stage.topic, timeout=PATIENCE_S)
        assert await reply.decode() == 16 * "x"


async def test_a_request_times_out(stage: Stage) -> None:
    broker = stage.broker()

    @broker.subscriber(stage.topic)
    async def sleep(body: Any) -> str:
        await asyncio.sleep(0.05)
        return "late"

    async with stage.running(broker):
        with pytest.raises(TimeoutError):
            await broker.request(None, stage.topic, timeout=0.01)


# Applications


async def test_headers_and_fields_of_the_message_are_injected(stage: Stage) -> None:
    broker = stage.broker()

    @broker.subscriber(stage.topic)
    async def handle(
        body: str,
        currency: str = Header(),
        shop: str = Header("x-shop", default="none"),
        where: str = Context("message.raw_message.topic"),
    ) -> None:
        await stage.heard.put((body, currency, shop, where))

    async with stage.running(broker):
        await broker.publish("a", stage.topic, headers={"currency": "EUR"})
        await stage.hears(("a", "EUR", "none", stage.topic))


async def test_hooks_and_lifespan_of_an_application_surround_its_messages(stage: Stage) -> None:
    broker = stage.broker()
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        events.append("begin")
        yield
        events.append("end")

    stage.listen(broker, stage.topic)
    app = FastStream(broker, lifespan=lifespan, logger=None)

    @app.after_startup
    async def publish() -> None:
        events.append("started")
        await broker.publish("from the hook", stage.topic)

    async with stage.running(broker, starts=False), TestApp(app):
        await stage.hears("from the hook")
    assert events == ["begin", "started", "end"]


async def test_a_health_page_says_whether_the_cluster_answers(stage: Stage) -> None:
    broker, away = stage.broker(), RocketMQBroker("127.0.0.1:1", logger=None)
    app = AsgiFastStream(
        broker,
        logger=None,
        asgi_routes=[
            ("/health", make_ping_asgi(broker, timeout=PATIENCE_S)),
            ("/away", make_ping_asgi(away, timeout=PATIENCE_S)),
        ],
    )
    transport = httpx.ASGITransport(app)
    async with stage.running(broker), httpx.AsyncClient(transport=transport, base_url="http://shop") as web:
        assert (await web.get("/health")).status_code == 204
        assert (await web.get("/away")).status_code == 500


async def test_an_asyncapi_page_publishes_what_is_tried_out(stage: Stage) -> None:
    broker = stage.broker()
    stage.listen(broker, stage.topic)
    app = AsgiFastStream(broker, logger=None, asyncapi_path="/docs")
    transport = httpx.ASGITransport(app)
    form = {
        "channelName": stage.topic,
        "message": {"message": "tried"},
        "options": {"sendToRealBroker": True},
    }
    async with stage.running(broker), httpx.AsyncClient(transport=transport, base_url="http://shop") as web:
        assert stage.topic in (await web.get("/docs")).text
        assert (await web.post("/docs/try", json=form)).status_code == 200
        await stage.hears("tried")


async def test_a_fastapi_application_handles_messages_and_publishes(stage: Stage) -> None:
    broker = stage.broker()
    web = FastAPI()

    async def tenant() -> str:
        return "north"

    @broker.subscriber(stage.topic)
    @broker.publisher(stage.topic + "-out")
    async def handle(body: Model, of: Annotated[str, fastapi.Depends(tenant)]) -> str:
        return f"{body.name} {of}"

    stage.listen(broker, stage.topic + "-out")

    @web.post("/orders")
    async def order(body: Model) -> None:
        await broker.publish(body, stage.topic)

    app = FastStreamAPI(broker, application=web)
    transport = httpx.ASGITransport(app)
    async with (
        stage.running(broker, starts=False),
        app._lifespan_context(app),  # as a server starts it
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        assert (await client.post("/orders", json={"name": "x"})).status_code == 200
        await stage.hears("x north")


# Connections


async def test_a_broker_is_stopped_and_started_again(stage: Stage) -> None:
    broker = stage.broker()
    await broker.stop()
    stage.listen(broker, stage.topic)
    for body in ("first", "second"):
        async with stage.running(broker):
            assert await broker.ping(timeout=PATIENCE_S)
            await broker.publish(body, stage.topic)
            await stage.hears(body)
