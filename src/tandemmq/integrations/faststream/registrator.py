"""Brokers and routers: the decorators that make subscribers and publishers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.endpoint.subscriber.call_item import CallsCollection

from tandemmq.client.consumer.subscription import Tags
from tandemmq.client.options import ConsumerOptions, StartFrom
from tandemmq.integrations.faststream.config import RocketMQBrokerConfig
from tandemmq.integrations.faststream.message import Raw
from tandemmq.integrations.faststream.publisher import (
    RocketMQPublisherConfig,
    RocketMQPublisherSpecification,
    RocketMQPublisherSpecificationConfig,
    TopicPublisher,
)
from tandemmq.integrations.faststream.response import MessageFields, check_options
from tandemmq.integrations.faststream.subscriber import (
    RocketMQSubscriber,
    RocketMQSubscriberConfig,
    RocketMQSubscriberSpecification,
    RocketMQSubscriberSpecificationConfig,
)

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.middlewares import AckPolicy


class DescriptionOptions(TypedDict, total=False):
    """The options of subscribers and publishers for the AsyncAPI document, and `persistent`: False lets the
    object end with its last reference.
    """

    title: str | None
    description: str | None
    include_in_schema: bool
    persistent: bool


class SubscriberOptions(DescriptionOptions, total=False):
    """The options of a subscriber: those of RocketMQ (`RocketMQSubscriberConfig`) and those of FastStream."""

    group: str
    tags: Tags
    sql: str | None
    batch: bool
    max_records: int
    max_workers: int
    orderly: bool
    start_from: StartFrom
    options: ConsumerOptions
    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None


class PublisherOptions(DescriptionOptions, MessageFields, total=False):
    """The options of a publisher: those of RocketMQ (`RocketMQPublisherConfig`) and those of FastStream."""

    headers: dict[str, str] | None
    reply_to: str
    batch: bool
    schema: Any


class RouterOptions(TypedDict, total=False):
    """The options of FastStream for a router."""

    ack_policy: AckPolicy
    decoder: CustomCallable | None
    dependencies: Sequence[Dependant]
    include_in_schema: bool | None
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    parser: CustomCallable | None


def config_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a broker or router by FastStream's names for them."""
    renamed = ("codec", "decoder", "dependencies", "middlewares", "parser")
    return {f"broker_{name}" if name in renamed else name: value for name, value in options.items()}


def _spec_options(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "title_": options.pop("title", None),
        "description_": options.pop("description", None),
        "include_in_schema": options.pop("include_in_schema", True),
    }


class RocketMQRegistrator(Registrator[Raw, RocketMQBrokerConfig]):
    """The part that brokers and routers share."""

    def subscriber(  # type: ignore[override]
        self, topic: str, **options: Unpack[SubscriberOptions]
    ) -> RocketMQSubscriber:
        """Returns a subscriber, which decorates the handlers of a topic's messages."""
        check_options(options, SubscriberOptions)
        rest = cast("dict[str, Any]", options)
        config = cast("RocketMQBrokerConfig", self.config)
        calls: CallsCollection[Raw] = CallsCollection()
        spec_config = RocketMQSubscriberSpecificationConfig(topic=topic, **_spec_options(rest))
        persistent = rest.pop("persistent", True)
        call_options = {
            "parser_": rest.pop("parser", None) or self._parser,
            "decoder_": rest.pop("decoder", None) or self._decoder,
            "codec_": rest.pop("codec", None),
            "dependencies_": rest.pop("dependencies", ()),
        }
        if "ack_policy" in rest:
            rest["_ack_policy"] = rest.pop("ack_policy")
        subscriber = RocketMQSubscriber(
            RocketMQSubscriberConfig(_outer_config=config, topic=topic, **rest),
            RocketMQSubscriberSpecification(config, spec_config, calls),
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(**call_options)

    def publisher(  # type: ignore[override]
        self, topic: str, **options: Unpack[PublisherOptions]
    ) -> TopicPublisher:
        """Returns a publisher to a topic, which also decorates handlers whose results it publishes."""
        check_options(options, PublisherOptions)
        rest = cast("dict[str, Any]", options)
        config = cast("RocketMQBrokerConfig", self.config)
        spec_config = RocketMQPublisherSpecificationConfig(
            topic=topic, schema_=rest.pop("schema", None), **_spec_options(rest)
        )
        persistent = rest.pop("persistent", True)
        fields = {name: rest.pop(name) for name in MessageFields.__optional_keys__ if name in rest}
        publisher = TopicPublisher(
            RocketMQPublisherConfig(
                _outer_config=config, topic=topic, fields=cast("MessageFields", fields), **rest
            ),
            RocketMQPublisherSpecification(config, spec_config),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(self, router: Registrator[Any, Any], **options: Any) -> None:
        """Includes a router. Raises TypeError for one of another kind of broker."""
        if not isinstance(router, RocketMQRegistrator):
            raise TypeError(f"the router must be a RocketMQRouter, not {type(router).__name__}")
        super().include_router(router, **options)


class RocketMQPublisher(ArgsContainer):
    """The arguments of `publisher`, for a route."""

    def __init__(self, topic: str, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, **options)


class RocketMQRoute(SubscriberRoute):
    """A handler and the arguments of `subscriber`, for a router."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[RocketMQPublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[Raw, RocketMQBrokerConfig]):
    """Subscribers and publishers that a broker or another router includes; `prefix` begins their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        routers: Iterable[RocketMQRegistrator] = (),
        **options: Unpack[RouterOptions],
    ) -> None:
        check_options(options, RouterOptions)
        config = RocketMQBrokerConfig(prefix=prefix, **config_options({"include_in_schema": None, **options}))
        super().__init__(handlers=handlers, config=config, routers=routers)
