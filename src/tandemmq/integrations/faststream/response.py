"""Messages to publish: the command that publishing middlewares see, and the response of a handler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from tandemmq.protocol.message import ReceivedMessage


class MessageFields(TypedDict, total=False):
    """The fields of a message that RocketMQ knows.

    tag           the tag, which subscribers filter by
    key           one key or several, for later searches
    delay_s       the seconds until the message is delivered
    ordering_key  messages with the same key go to the same queue, so `orderly` subscribers keep their order
    priority      0 and up, for topics of priorities
    """

    tag: str
    key: str | Sequence[str]
    delay_s: float
    ordering_key: str
    priority: int


def check_options(options: Mapping[str, object], allowed: type) -> None:
    """Raises TypeError for a name that the TypedDict `allowed` does not have."""
    names: frozenset[str] = allowed.__optional_keys__  # type: ignore[attr-defined]
    unknown = sorted(options.keys() - names)
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}: allowed are {', '.join(sorted(names))}")


class RocketMQPublishCommand(BatchPublishCommand):
    """One publishing: one message, or several with the same fields.

    `fields` may be changed by middlewares. `request`: the received request that this message answers.
    """

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str = "",
        publish_type: PublishType = PublishType.PUBLISH,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout_s: float | None = None,
        **fields: Unpack[MessageFields],
    ) -> None:
        check_options(fields, MessageFields)
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=publish_type,
        )
        self.timeout_s = timeout_s
        self.fields = fields
        self.request: ReceivedMessage | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Returns the command of another class as one of this class; with `batch` a sequence becomes several
        messages.
        """
        if isinstance(cmd, cls):
            if batch and not cmd.extra_bodies:
                cmd.body, cmd.extra_bodies = cls._parse_bodies(cmd.body, batch=True)
            return cmd
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *others,
            topic=cmd.destination,
            publish_type=cmd.publish_type,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
        )


class RocketMQResponse(Response):
    """The result of a handler, with the fields of the message that it becomes."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> None:
        check_options(fields, MessageFields)
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.fields = fields

    def as_publish_command(self) -> RocketMQPublishCommand:
        """Returns the command that publishes the response."""
        return RocketMQPublishCommand(
            self.body, headers=self.headers, correlation_id=self.correlation_id, **self.fields
        )
