"""The broker: the connection to a cluster, and publishing without a publisher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Unpack, cast

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.constants import EMPTY
from faststream._internal.context import Context
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import make_logger_state
from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import ClientOptions, ProducerOptions, ServerNames, parse_name_servers
from tandemmq.client.producer.producer import Producer
from tandemmq.errors import TandemError
from tandemmq.integrations.faststream.config import RocketMQBrokerConfig, SubscriberLogLines
from tandemmq.integrations.faststream.message import Raw, RocketMQMessage
from tandemmq.integrations.faststream.producer import RocketMQProducer
from tandemmq.integrations.faststream.publisher import PublishMethods
from tandemmq.integrations.faststream.registrator import RocketMQRegistrator, RouterOptions, config_options
from tandemmq.integrations.faststream.response import RocketMQPublishCommand, check_options
from tandemmq.integrations.faststream.subscriber import RocketMQSubscriber
from tandemmq.remoting.options import TlsClientOptions

if TYPE_CHECKING:
    from fast_depends import Provider
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import IdGenerator
    from faststream.specification.schema.extra import Tag, TagDict


class BrokerSetup(RouterOptions, total=False):
    """The options of FastStream for a broker: shut-down, bodies, AsyncAPI document, log, dependencies; and
    `create_topics` (True): topics of subscribers are created if they do not exist.
    """

    create_topics: bool
    graceful_timeout: float | None
    codec: CodecProto | None
    id_generator: IdGenerator
    specification_url: str | None
    protocol: str | None
    protocol_version: str | None
    description: str | None
    tags: Iterable[Tag | TagDict]
    logger: LoggerProto | None
    log_level: int
    apply_types: bool
    serializer: SerializerProto | None
    provider: Provider | None
    context: ContextRepo | None


class RocketMQBroker(  # type: ignore[misc]  # FastStream's own brokers change these signatures, too
    PublishMethods, RocketMQRegistrator, BrokerUsecase[Raw, ClientInstance, RocketMQBrokerConfig]
):
    """A broker of FastStream on a RocketMQ-compatible cluster.

    `group`: the beginning of the group names of subscribers that name none. `client`, `producer`: options of
    the connections and of sending. `security`: TLS, and the access key and the secret key as user name and
    password; what it cannot express is set in `client`.
    """

    _connection: ClientInstance | None

    def __init__(
        self,
        name_servers: ServerNames = "127.0.0.1:9876",
        *,
        group: str = "faststream",
        client: ClientOptions | None = None,
        producer: ProducerOptions | None = None,
        security: BaseSecurity | None = None,
        routers: Iterable[RocketMQRegistrator] = (),
        **options: Unpack[BrokerSetup],
    ) -> None:
        check_options(options, BrokerSetup)
        self._name_servers = name_servers
        secure = secured(client or ClientOptions(), security)
        self._producer_options = replace(producer or ProducerOptions(), client=secure)
        self._sender: Producer | None = None
        rest: dict[str, Any] = dict(options)
        specification = BrokerSpec(
            url=[rest.pop("specification_url", None) or ";".join(parse_name_servers(name_servers))],
            protocol=rest.pop("protocol", None) or "rocketmq",
            protocol_version=rest.pop("protocol_version", None),
            description=rest.pop("description", None),
            tags=rest.pop("tags", ()),
            security=security,
        )
        logger = make_logger_state(
            rest.pop("logger", EMPTY), rest.pop("log_level", logging.INFO), SubscriberLogLines
        )
        fd_config = FastDependsConfig(
            use_fastdepends=rest.pop("apply_types", True),
            serializer=rest.pop("serializer", EMPTY),
            provider=rest.pop("provider", None) or dependency_provider,
            context=rest.pop("context", None) or ContextRepo(),
        )
        config = RocketMQBrokerConfig(
            group=group,
            producer=RocketMQProducer(rest.get("parser"), rest.get("decoder")),
            logger=logger,
            fd_config=fd_config,
            extra_context={"broker": self},
            default_driver_annotations=DRIVER_ANNOTATIONS,
            **config_options(rest),
        )
        super().__init__(config=config, specification=specification, routers=routers)

    async def _connect(self) -> ClientInstance:
        """Connects. Raises BrokerUnreachable when no name server accepts a connection."""
        config = self.config.broker_config
        sender = Producer(f"{config.group}-producer", self._name_servers, options=self._producer_options)
        self._sender = await sender.start()
        config.instance = sender.instance
        config.producer.connect(sender, config.fd_config._serializer, config.broker_codec)
        return sender.instance

    async def start(self) -> None:
        """Connects and starts the subscribers. Raises SetupError when two of them have the same group."""
        await self.connect()
        groups = [subscriber.group for subscriber in cast("list[RocketMQSubscriber]", self.subscribers)]
        doubled = sorted({group for group in groups if groups.count(group) > 1})
        if doubled:
            raise SetupError(
                f"two subscribers have the group {doubled[0]!r}: pass group=... so that each has its own"
            )
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stops the subscribers and ends the connections, also when that of a subscriber fails."""
        sender = self._sender
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            self._connection = self._sender = self.config.broker_config.instance = None
            self.config.broker_config.producer.connect(None, None, None)
            if sender is not None:
                await sender.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Returns True if a name server and every known master answer in time."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._connection.ping()
        except (TandemError, TimeoutError):
            return False
        return True

    def _command(self, *messages: Any, **options: Any) -> RocketMQPublishCommand:
        options["correlation_id"] = options["correlation_id"] or self.config.id_generator()
        return RocketMQPublishCommand(*messages, **options)

    async def _send(self, cmd: RocketMQPublishCommand, *, batch: bool = False) -> Any:
        send = self._basic_publish_batch if batch else self._basic_publish
        return await send(cmd, producer=self._producer)

    async def _request(self, cmd: RocketMQPublishCommand) -> Any:
        return await self._basic_request(cmd, producer=self._producer)


def secured(options: ClientOptions, security: BaseSecurity | None) -> ClientOptions:
    """Returns the options with FastStream's security.

    Raises:  SetupError for a kind that RocketMQ does not have, or an SSL context of the application's own.
    """
    if security is None:
        return options
    if security.ssl_context is not None:
        raise SetupError(
            "an SSL context cannot be passed: use client=ClientOptions(tls=TlsClientOptions(...))"
        )
    if security.use_ssl and options.tls is None:
        options = replace(options, tls=TlsClientOptions())
    if isinstance(security, SASLPlaintext):
        return replace(options, access_key=security.username, secret_key=security.password)
    if type(security) is BaseSecurity:
        return options
    raise SetupError(f"RocketMQBroker knows BaseSecurity and SASLPlaintext, not {type(security).__name__}")


def _annotation(driver: type, name: str, context: str) -> UnderlyingDriverAnnotation:
    hint = Annotated[driver, Context(context)]  # type: ignore[valid-type]
    return UnderlyingDriverAnnotation(type_hint=hint, module=ANNOTATIONS, name=name)


ANNOTATIONS = "tandemmq.integrations.faststream.annotations"
DRIVER_ANNOTATIONS = {
    RocketMQBroker: _annotation(RocketMQBroker, "RocketMQBroker", "broker"),
    RocketMQMessage: _annotation(RocketMQMessage, "RocketMQMessage", "message"),
    ClientInstance: _annotation(ClientInstance, "Client", "broker._connection"),
}
"""The annotations that handlers use in place of these classes, for FastStream's error texts."""
