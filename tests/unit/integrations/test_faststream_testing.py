"""A FastStream application on the test broker: filters, groups, answers, batches, routers, middlewares."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Context, FastStream, Response, TestApp
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import IncorrectState, NackMessage, RejectMessage, SetupError, SubscriberNotFound
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram512
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from tandemmq.client import ClientOptions, ConsumerOptions, StartFrom
from tandemmq.errors import MessageIllegal
from tandemmq.integrations.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQPublishCommand,
    RocketMQPublisher,
    RocketMQResponse,
    RocketMQRoute,
    RocketMQRouter,
    TestRocketMQBroker,
    annotations,
)
from tandemmq.integrations.faststream.broker import secured
from tandemmq.integrations.faststream.message import RocketMQMessage as PlainMessage


class Order(BaseModel):
    number: int


@pytest.fixture
def broker() -> RocketMQBroker:
    return RocketMQBroker()


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ("hello", str, "hello"),
        ("", str, ""),
        (b"hello", bytes, b"hello"),
        (None, Any, None),
        (1, int, 1),
        (False, bool, False),
        ([1, 2], list[int], [1, 2]),
        ({"number": 7}, Order, Order(number=7)),
        (Order(number=7), dict, {"number": 7}),
    ],
)
async def test_bodies_come_as_they_were_published(
    broker: RocketMQBroker, body: Any, kind: Any, expected: Any
) -> None:
    got = []

    @broker.subscriber("Orders")
    async def handle(body: kind) -> None:
        got.append(body)

    async with TestRocketMQBroker(broker):
        await broker.publish(body, "Orders")
    assert got == [expected]


async def test_empty_bytes_are_refused_as_a_cluster_would(broker: RocketMQBroker) -> None:
    async with TestRocketMQBroker(broker):
        with pytest.raises(MessageIllegal, match="the body is empty"):
            await broker.publish(b"", "Orders")


async def test_filters_and_groups_are_those_of_a_cluster(broker: RocketMQBroker) -> None:
    got = []

    @broker.subscriber("Orders", group="paid", tags="paid || refunded")
    async def by_tag(body: str) -> None:
        got.append(("tag", body))

    @broker.subscriber("Orders", group="dear", sql="price > 100")
    async def by_price(body: str) -> None:
        got.append(("price", body))

    @broker.subscriber("Orders", group="all")
    async def first_member(body: str) -> None:
        got.append(("all", body))

    async with TestRocketMQBroker(broker):
        await broker.publish("a", "Orders", tag="paid", headers={"price": "50"})
        await broker.publish("b", "Orders", tag="open", headers={"price": 150})
        await broker.publish("c", "Orders")
        await broker.publish("d", "Other")
    assert sorted(got) == [("all", "a"), ("all", "b"), ("all", "c"), ("price", "b"), ("tag", "a")]


async def test_fields_and_headers_reach_the_handler(broker: RocketMQBroker) -> None:
    seen = []

    @broker.subscriber("Orders")
    async def handle(
        body: str, message: RocketMQMessage, number: str = Context("message.headers.number")
    ) -> None:
        raw = message.raw_message
        seen.append((raw.tags, raw.keys, raw.properties["__SHARDINGKEY"], raw.properties["TIMER_DELAY_MS"]))
        seen.append((number, message.correlation_id, message.content_type, message.reply_to))
        assert set(message.headers) == {"number", "content-type", "correlation_id"}

    async with TestRocketMQBroker(broker):
        await broker.publish(
            "a",
            "Orders",
            tag="paid",
            key=["1", "2"],
            ordering_key="customer 7",
            delay_s=1.5,
            headers={"number": 3},
            correlation_id="77",
        )
    assert seen == [("paid", ("1", "2"), "customer 7", "1500"), ("3", "77", "text/plain", "")]


async def test_results_are_published_with_the_fields_of_publisher_and_response(
    broker: RocketMQBroker,
) -> None:
    publisher = broker.publisher("Invoices", tag="new", headers={"from": "shop"}, reply_to="Answers")

    @publisher
    @broker.subscriber("Orders")
    async def bill(number: int) -> Response:
        if number == 1:
            return Response(number, headers={"extra": "1"}, correlation_id="own")
        return RocketMQResponse(number, tag="late", key="k")

    seen = []

    @broker.subscriber("Invoices")
    async def book(number: int, message: RocketMQMessage) -> None:
        raw = message.raw_message
        seen.append((number, raw.tags, raw.keys, message.headers.get("from"), message.headers.get("extra")))
        assert message.reply_to == "Answers"

    async with TestRocketMQBroker(broker):
        await broker.publish(1, "Orders")
        await broker.publish(2, "Orders", correlation_id="theirs")
        publisher.mock.assert_called_with(2)
        await publisher.assert_called_with(2, correlation_id="theirs")
        await publisher.publish(3, tag="by hand")
    assert seen == [
        (1, "new", (), "shop", "1"),
        (2, "late", ("k",), "shop", None),
        (3, "by hand", (), "shop", None),
    ]


async def test_answers_go_to_the_topic_or_the_requester(broker: RocketMQBroker) -> None:
    answers = []

    @broker.subscriber("Prices", group="prices", tags="ask")
    async def price(name: str) -> str:
        return f"{name}: 3.50"

    @broker.subscriber("Prices", group="silent", no_reply=True, tags="quiet")
    async def silent(name: str) -> str:
        return name

    @broker.subscriber("Answers")
    async def note(answer: str) -> None:
        answers.append(answer)

    publisher = broker.publisher("Prices", tag="ask")
    async with TestRocketMQBroker(broker):
        await broker.publish("apples", "Prices", tag="ask", reply_to="Answers")
        await broker.publish("pears", "Prices", tag="quiet", reply_to="Answers")
        reply = await broker.request("plums", "Prices", tag="ask", correlation_id="9")
        assert (await reply.decode(), reply.correlation_id) == ("plums: 3.50", "9")
        assert await (await publisher.request("nuts")).decode() == "nuts: 3.50"
        with pytest.raises(SubscriberNotFound, match="no subscriber of topic 'Prices'"):
            await broker.request("plums", "Prices")
    assert answers == ["apples: 3.50"]


async def test_batches(broker: RocketMQBroker) -> None:
    seen: list[Any] = []

    @broker.subscriber("Orders", batch=True, tags="a", group="batches")
    @broker.publisher("Doubles", batch=True)
    async def double(numbers: list[int], message: RocketMQMessage) -> list[int]:
        seen.append((numbers, len(message.raw_message), [one["n"] for one in message.batch_headers]))
        return [2 * number for number in numbers]

    @broker.subscriber("Orders", group="singles")
    async def single(number: int) -> None:
        seen.append(number)

    doubles = []

    @broker.subscriber("Doubles")
    async def note(number: int) -> None:
        doubles.append(number)

    async with TestRocketMQBroker(broker):
        await broker.publish_batch(1, 2, topic="Orders", tag="a", headers={"n": "1"})
        await broker.publish(3, "Orders", tag="a", headers={"n": "2"})
    assert [one for one in seen if isinstance(one, int)] == [1, 2, 3]
    assert [one for one in seen if isinstance(one, tuple)] == [([1, 2], 2, ["1", "1"]), ([3], 1, ["2"])]
    assert doubles == [2, 4, 6]


async def test_a_response_may_be_a_batch(broker: RocketMQBroker) -> None:
    got = []

    @broker.subscriber("Orders")
    @broker.publisher("Items", batch=True)
    async def split(number: int) -> RocketMQResponse:
        return RocketMQResponse([number, number + 1], tag="item")

    @broker.subscriber("Items", tags="item")
    async def note(number: int) -> None:
        got.append(number)

    async with TestRocketMQBroker(broker):
        await broker.publish(1, "Orders")
    assert got == [1, 2]


async def test_a_class_that_cannot_be_injected_is_named_with_its_annotation(broker: RocketMQBroker) -> None:
    @broker.subscriber("Orders")
    async def handle(message: PlainMessage) -> None: ...

    with pytest.raises(
        SetupError, match=r"from tandemmq\.integrations\.faststream\.annotations import RocketMQMessage"
    ):
        async with TestRocketMQBroker(broker):
            pass


async def test_the_broker_and_its_client_are_injected(broker: RocketMQBroker) -> None:
    got: list[Any] = []

    @broker.subscriber("Orders")
    async def handle(own: annotations.RocketMQBroker, client: annotations.Client) -> None:
        got.extend((own, client))

    async with TestRocketMQBroker(broker) as started:
        await broker.publish(1, "Orders")
        assert got == [broker, started._connection]


async def test_a_broker_that_is_not_started_can_be_stopped(broker: RocketMQBroker) -> None:
    await broker.stop()
    assert not broker.running


async def test_subscribers_and_routers_may_come_after_the_start(broker: RocketMQBroker) -> None:
    got = []
    inner = RocketMQRouter("inner_")
    broker.include_router(RocketMQRouter("outer_", routers=[inner]))

    async with TestRocketMQBroker(broker):
        late = [broker.subscriber("Orders"), inner.subscriber("Orders")]

        async def note(number: int) -> None:
            got.append(number)

        for subscriber in late:
            subscriber(note)
            await subscriber.start()
        await broker.publish(1, "Orders")
        await inner.publisher("Orders").publish(2)
        for subscriber in late:
            await subscriber.stop()
    assert got == [1, 2]


async def test_an_application_may_have_several_brokers() -> None:
    one, other = RocketMQBroker(), RocketMQBroker()
    got = []

    @one.subscriber("Orders")
    @other.publisher("Invoices")
    async def bill(number: int) -> int:
        return number + 1

    @one.subscriber("Invoices")
    async def note(number: int) -> None:
        got.append(number)

    events = []
    app = FastStream(one, other)
    app.on_startup(lambda: events.append("starts"))
    app.after_shutdown(lambda: events.append("is stopped"))
    async with TestRocketMQBroker(one, other), TestApp(app):
        await one.publish(1, "Orders")
    assert (got, events) == ([2], ["starts", "is stopped"])


async def test_a_cancelled_handler_acknowledges_nothing(broker: RocketMQBroker) -> None:
    messages = []

    @broker.subscriber("Orders")
    async def handle(message: RocketMQMessage) -> None:
        messages.append(message)
        raise asyncio.CancelledError

    async with TestRocketMQBroker(broker):
        with pytest.raises(asyncio.CancelledError):
            await broker.publish(1, "Orders")
    assert [one.committed for one in messages] == [None]


@pytest.mark.parametrize(
    ("policy", "error", "status"),
    [
        (AckPolicy.NACK_ON_ERROR, None, "ACKED"),
        (AckPolicy.NACK_ON_ERROR, ValueError, "NACKED"),
        (AckPolicy.REJECT_ON_ERROR, ValueError, "REJECTED"),
        (AckPolicy.ACK, ValueError, "ACKED"),
        (AckPolicy.ACK_FIRST, ValueError, "ACKED"),
        (AckPolicy.MANUAL, ValueError, None),
        (AckPolicy.ACK, NackMessage, "NACKED"),
        (AckPolicy.ACK, RejectMessage, "REJECTED"),
    ],
)
async def test_policies_decide_what_happens_to_a_message(
    broker: RocketMQBroker, policy: AckPolicy, error: type[Exception] | None, status: str | None
) -> None:
    messages = []

    @broker.subscriber("Orders", ack_policy=policy)
    async def handle(message: RocketMQMessage) -> None:
        messages.append(message)
        if error is not None:
            raise error

    async with TestRocketMQBroker(broker):
        with suppress(ValueError):
            await broker.publish(1, "Orders")
    assert [one.committed for one in messages] == [status]


async def test_routers_add_prefixes_middlewares_and_dependencies(broker: RocketMQBroker) -> None:
    got = []

    async def handle(body: str) -> str:
        got.append(body)
        return body.upper()

    async def echo(body: str) -> None:
        got.append(body)

    class Mark(BaseMiddleware):
        async def consume_scope(self, call_next: Any, message: Any) -> Any:
            got.append("marked")
            return await call_next(message)

    inner = RocketMQRouter(
        "eu_",
        handlers=[RocketMQRoute(handle, "Orders", publishers=[RocketMQPublisher("Loud")], group="g")],
        middlewares=[Mark],
    )
    outer = RocketMQRouter(ack_policy=AckPolicy.ACK)
    outer.subscriber("Loud")(echo)
    inner.include_router(outer)
    broker.include_router(inner, prefix="shop_")
    assert sorted(one.topic for one in broker.subscribers) == ["shop_eu_Loud", "shop_eu_Orders"]
    assert sorted(one.group for one in broker.subscribers) == ["faststream-shop_eu_Loud", "g"]
    async with TestRocketMQBroker(broker):
        await broker.publish("a", "shop_eu_Orders")
    assert got == ["marked", "a", "marked", "A"]


async def test_middlewares_may_change_what_is_published(broker: RocketMQBroker) -> None:
    class Tag(BaseMiddleware[RocketMQPublishCommand]):
        async def publish_scope(self, call_next: Any, cmd: RocketMQPublishCommand) -> Any:
            cmd.fields["tag"] = "changed"
            return await call_next(cmd)

    broker.add_middleware(Tag)
    tags = []

    @broker.subscriber("Orders")
    async def handle(message: RocketMQMessage) -> None:
        tags.append(message.raw_message.tags)

    async with TestRocketMQBroker(broker):
        await broker.publish("a", "Orders", tag="own")
        await broker.publish_batch("a", "b", topic="Orders")
    assert tags == ["changed"] * 3


async def test_parsers_decoders_and_codecs_of_the_application() -> None:
    class Reversed(DefaultCodec):
        async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
            payload, kind = await super().encode(msg, serializer)
            return payload[::-1], kind

        async def decode(self, msg: Any) -> Any:
            return msg.body[::-1].decode()

    async def parse(message: Any, original: Any) -> Any:
        parsed = await original(message)
        parsed.headers["parsed"] = "yes"
        return parsed

    async def decode(message: Any, original: Any) -> Any:
        return (await original(message)).upper()

    broker = RocketMQBroker(parser=parse, codec=Reversed())
    plain = RocketMQBroker(decoder=decode)
    got = []

    @broker.subscriber("Orders")
    async def handle(body: str, parsed: str = Context("message.headers.parsed")) -> None:
        got.append((body, parsed))

    @plain.subscriber("Orders")
    async def loud(body: str) -> None:
        got.append((body, ""))

    async with TestRocketMQBroker(broker):
        await broker.publish("abc", "Orders")
    async with TestRocketMQBroker(plain):
        await plain.publish("abc", "Orders")
    assert got == [("abc", "yes"), ("ABC", "")]


async def test_an_error_of_a_handler_is_raised_to_the_test(broker: RocketMQBroker) -> None:
    @broker.subscriber("Orders")
    async def handle(body: str) -> None:
        raise ValueError(body)

    async with TestRocketMQBroker(broker):
        with pytest.raises(ValueError, match="on purpose"):
            await broker.publish("on purpose", "Orders")
        handle.mock.assert_called_once_with("on purpose")


async def test_mistakes_are_named(broker: RocketMQBroker) -> None:
    with pytest.raises(TypeError, match="unexpected argument 'tag': allowed are ack_policy, batch"):
        broker.subscriber("Orders", tag="a")
    with pytest.raises(TypeError, match="unexpected argument 'tags'"):
        broker.publisher("Orders", tags="a")
    with pytest.raises(TypeError, match="unexpected argument 'tags': allowed are delay_s"):
        await broker.publish("a", "Orders", tags="a")
    with pytest.raises(TypeError, match="unexpected argument 'url'"):
        RocketMQBroker(url="a")
    with pytest.raises(TypeError, match="unexpected argument 'group'"):
        RocketMQRouter(group="a")
    with pytest.raises(TypeError, match="must be a RocketMQRouter, not str"):
        broker.include_router("orders")
    with pytest.raises(SetupError, match="max_workers = 0: must be at least 1"):
        broker.subscriber("Orders", max_workers=0)
    with pytest.raises(SetupError, match="a batch of an orderly subscriber"):
        broker.subscriber("Orders", batch=True, options=ConsumerOptions(orderly=True))
    with pytest.raises(IncorrectState, match="broker is not connected"):
        await broker.publish("a", "Orders")
    with pytest.raises(IncorrectState, match="broker is not connected"):
        assert broker.config.connected


def test_consumer_options_come_from_the_subscriber_or_its_options(broker: RocketMQBroker) -> None:
    plain = broker.subscriber("A").config.consumer_options
    assert (plain.start_from, plain.orderly, plain.auto_ack) == (StartFrom.FIRST, False, False)
    options = ConsumerOptions(start_from=StartFrom.LAST, orderly=True, retry_count_max=3)
    given = broker.subscriber("A", options=options, orderly=False).config.consumer_options
    assert (given.start_from, given.orderly, given.retry_count_max) == (StartFrom.LAST, False, 3)


def test_ack_policies_come_from_the_subscriber_its_router_or_its_broker() -> None:
    broker = RocketMQBroker(ack_policy=AckPolicy.ACK)
    assert RocketMQBroker().subscriber("A").ack_policy is AckPolicy.NACK_ON_ERROR
    assert broker.subscriber("A").ack_policy is AckPolicy.ACK
    assert broker.subscriber("A", ack_policy=AckPolicy.MANUAL).ack_policy is AckPolicy.MANUAL


def test_security_becomes_options_of_the_client() -> None:
    signed = secured(ClientOptions(), SASLPlaintext(username="key", password="secret", use_ssl=True))
    assert (signed.access_key, signed.secret_key, signed.tls is None) == ("key", "secret", False)
    assert secured(ClientOptions(), BaseSecurity()) == ClientOptions()
    with pytest.raises(SetupError, match="not SASLScram512"):
        secured(ClientOptions(), SASLScram512(username="key", password="secret"))


async def test_the_asyncapi_document_describes_topics_and_messages(broker: RocketMQBroker) -> None:
    broker = RocketMQBroker("10.0.0.1;10.0.0.2:9877", description="the shop")

    @broker.publisher("Invoices", title="invoices", schema=int)
    @broker.subscriber("Orders", group="billing", description="bills orders")
    async def bill(order: Order) -> int:
        return order.number

    document = AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()
    (server,) = document["servers"].values()
    assert (server["protocol"], server["host"]) == ("rocketmq", "10.0.0.1:9876;10.0.0.2:9877")
    assert {one["address"] for one in document["channels"].values()} == {"Orders", "Invoices"}
    assert document["components"]["schemas"]["Order"]["properties"] == {
        "number": {"title": "Number", "type": "integer"}
    }
