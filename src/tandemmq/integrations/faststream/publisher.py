"""Publishers: objects that send to one topic, and the ones that answer requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import PublisherSpec

from tandemmq.client.producer.results import SendResult
from tandemmq.integrations.faststream.config import RocketMQBrokerConfig, TopicChannel, describe_channel
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
    TopicChannel, PublisherSpecification[RocketMQBrokerConfig, RocketMQPublisherSpecificationConfig]
):
    """Describes a publisher in the AsyncAPI document."""

    @property
    def name(self) -> str:
        """The name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Returns the description by the name of the channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return describe_channel(self, PublisherSpec, self.config.description_, payload)


class PublishMethods(ABC):
    """The ways to publish, which a broker and its publishers share: they complete a command, and send it."""

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
        """Publishes a message; returns its position once it is stored. `reply_to`: the topic for the answer.

        Raises:  the errors of `Producer.send`.
        """
        given: dict[str, Any] = {"topic": topic, "headers": headers, "correlation_id": correlation_id}
        sent: SendResult = await self._send(self._command(message, reply_to=reply_to, **given, **fields))
        return sent

    async def publish_batch(
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> list[SendResult]:
        """Publishes several messages in one request to one queue; all or none are stored.

        Raises:  the errors of `Producer.send_batch`.
        """
        given: dict[str, Any] = {"topic": topic, "headers": headers, "correlation_id": correlation_id}
        sent: list[SendResult] = await self._send(self._command(*messages, **given, **fields), batch=True)
        return sent

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> RocketMQMessage:
        """Sends a request and returns the answer of its handler, for which it waits 3 s unless `timeout` says
        otherwise.

        Raises:  RequestTimeout when no answer came in time; the errors of `publish`.
        """
        given: dict[str, Any] = {"topic": topic, "headers": headers, "correlation_id": correlation_id}
        cmd = self._command(message, publish_type=PublishType.REQUEST, timeout_s=timeout, **given, **fields)
        answer: RocketMQMessage = await self._request(cmd)
        return answer

    @abstractmethod
    def _command(self, *messages: Any, **options: Any) -> RocketMQPublishCommand:
        """Returns the complete command."""

    @abstractmethod
    async def _send(self, cmd: RocketMQPublishCommand, *, batch: bool = False) -> Any:
        """Sends the command."""

    @abstractmethod
    async def _request(self, cmd: RocketMQPublishCommand) -> Any:
        """Sends the command and returns the answer to it."""


class TopicPublisher(TopicChannel, PublishMethods, PublisherUsecase):
    """Publishes to one topic, when it is called and with the results of the handlers that it decorates."""

    _outer_config: RocketMQBrokerConfig

    def __init__(
        self, config: RocketMQPublisherConfig, specification: RocketMQPublisherSpecification
    ) -> None:
        super().__init__(config, cast("Any", specification))
        self.config = config

    def _command(self, *messages: Any, **options: Any) -> RocketMQPublishCommand:
        options["correlation_id"] = options["correlation_id"] or self._outer_config.id_generator()
        return self._with_defaults(RocketMQPublishCommand(*(messages or (None,)), **options))

    def _with_defaults(self, cmd: RocketMQPublishCommand) -> RocketMQPublishCommand:
        cmd.destination = cmd.destination or self.topic
        cmd.reply_to = cmd.reply_to or self.config.reply_to
        cmd.add_headers(self.config.headers or {}, override=False)
        cmd.fields = {**self.config.fields, **cmd.fields}
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

    async def _request(self, cmd: RocketMQPublishCommand) -> Any:
        return await self._basic_request(cmd, producer=self._outer_config.producer)

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publishes the result of a handler."""
        batch = self.config.batch
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
