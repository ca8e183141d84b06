"""Publishers: objects that send to one topic, and the ones that answer requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from tandemmq.client.producer.results import SendResult
from tandemmq.integrations.faststream.config import RocketMQBrokerConfig
from tandemmq.integrations.faststream.message import RocketMQMessage
from tandemmq.integrations.faststream.response import MessageFields, RocketMQPublishCommand

if TYPE_CHECKING:
    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand


@dataclass(kw_only=True)
class RocketMQPublisherConfig(PublisherUsecaseConfig):
    """The settings of a publisher; `fields` and `headers` hold for messages that do not name their own."""

    _: KW_ONLY
    _outer_config: RocketMQBrokerConfig = field(default_factory=RocketMQBrokerConfig)
    topic: str
    headers: dict[str, str] | None = None
    reply_to: str = ""
    batch: bool = False
    fields: MessageFields


@dataclass(kw_only=True)
class RocketMQPublisherSpecificationConfig(PublisherSpecificationConfig):
    """The settings of a publisher's part of the AsyncAPI document."""

    topic: str


class RocketMQPublisherSpecification(
    PublisherSpecification[RocketMQBrokerConfig, RocketMQPublisherSpecificationConfig]
):
    """Describes a publisher in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of the routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Returns the description by the name of the channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(
                    message=Message(title=f"{self.name}:Message", payload=payload), bindings=None
                ),
                bindings=None,
            )
        }


class TopicPublisher(PublisherUsecase):
    """Publishes to one topic, when it is called and with the results of the handlers that it decorates."""

    _outer_config: RocketMQBrokerConfig

    def __init__(
        self, config: RocketMQPublisherConfig, specification: RocketMQPublisherSpecification
    ) -> None:
        super().__init__(config, cast("Any", specification))
        self._config = config

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of the routers."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **fields: Unpack[MessageFields],
    ) -> SendResult:
        """Publishes a message; returns its position once it is stored. Raises as `Producer.send`."""
        cmd = self._command(message, topic=topic, headers=headers, correlation_id=correlation_id, **fields)
        cmd.reply_to = reply_to or cmd.reply_to
        sent: SendResult = await self._send(cmd)
        return sent

    async def publish_batch(
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> list[SendResult]:
        """Publishes several messages in one request; all or none are stored. Raises as
        `Producer.send_batch`.
        """
        cmd = self._command(*messages, topic=topic, headers=headers, correlation_id=correlation_id, **fields)
        sent: list[SendResult] = await self._send(cmd, batch=True)
        return sent

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> RocketMQMessage:
        """Sends a request and returns its reply. Raises as `Producer.request`."""
        cmd = self._command(message, topic=topic, headers=headers, correlation_id=correlation_id, **fields)
        cmd.publish_type, cmd.timeout_s = PublishType.REQUEST, timeout
        return await self._basic_request(cmd, producer=self._outer_config.producer)

    def _command(
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        **fields: Unpack[MessageFields],
    ) -> RocketMQPublishCommand:
        return self._with_defaults(
            RocketMQPublishCommand(
                *(messages or (None,)),
                topic=topic,
                headers=headers,
                correlation_id=correlation_id or self._outer_config.id_generator(),
                **fields,
            )
        )

    def _with_defaults(self, cmd: RocketMQPublishCommand) -> RocketMQPublishCommand:
        cmd.destination = cmd.destination or self.topic
        cmd.reply_to = cmd.reply_to or self._config.reply_to
        cmd.add_headers(self._config.headers or {}, override=False)
        cmd.fields = {**self._config.fields, **cmd.fields}
        return cmd

    async def _send(
        self,
        cmd: RocketMQPublishCommand,
        *,
        batch: bool = False,
        middlewares: Iterable[PublisherMiddleware] = (),
    ) -> Any:
        send = self._basic_publish_batch if batch else self._basic_publish
        return await send(cmd, producer=self._outer_config.producer, _extra_middlewares=middlewares)

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publishes the result of a handler."""
        batch = self._config.batch
        full = self._with_defaults(RocketMQPublishCommand.from_cmd(cmd, batch=batch))
        await self._send(full, batch=batch, middlewares=_extra_middlewares)


class ReplyPublisher(FakePublisher):
    """Publishes the result of a handler as the answer to its message."""

    def __init__(self, producer: ProducerProto[Any], message: RocketMQMessage) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Returns the command with its destination: a topic, or the client that sent the request."""
        full = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        full.destination = self._message.reply_to
        full.request = self._message.own_request
        return full
