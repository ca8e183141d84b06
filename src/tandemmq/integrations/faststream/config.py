"""The settings of brokers and routers that FastStream composes, and the format of the log lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from faststream._internal.configs import BrokerConfig
from faststream._internal.logger import DefaultLoggerStorage
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import IncorrectState
from faststream.specification.schema import Message, Operation

from tandemmq.client.instance import ClientInstance
from tandemmq.integrations.faststream.producer import RocketMQProducer

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

D = TypeVar("D")

MESSAGE_ID_CHARS = 32


@dataclass(kw_only=True)
class RocketMQBrokerConfig(BrokerConfig):
    """The settings of a broker. `group` begins the names of groups that are not named; with `create_topics`
    topics of subscribers are created if they do not exist.
    """

    group: str = "faststream"
    create_topics: bool = True
    producer: RocketMQProducer = field(default_factory=RocketMQProducer)
    instance: ClientInstance | None = field(default=None, init=False, repr=False)

    @property
    def connected(self) -> ClientInstance:
        """The client instance. Raises IncorrectState before `connect`."""
        if self.instance is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` first")
        return self.instance


class TopicChannel:
    """The topic of a publisher, a subscriber, or the description of one."""

    _outer_config: RocketMQBrokerConfig
    config: Any

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of the routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"


def describe_channel(
    channel: Any, kind: Callable[..., D], description: str | None, payload: Any
) -> dict[str, D]:
    """Returns a channel of the AsyncAPI document, a specification of this kind, by its name."""
    message = Message(title=f"{channel.name}:Message", payload=payload)
    operation = Operation(message=message, bindings=None)
    found = kind(address=channel.topic, description=description, operation=operation, bindings=None)
    return {channel.name: found}


class SubscriberLogLines(DefaultLoggerStorage):
    """Makes the log lines, which show topic, group and message."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 5}

    def register_subscriber(self, params: Mapping[str, Any]) -> None:
        """Widens the columns for a subscriber."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Returns the logger."""
        logger = self._get_logger_ref()
        if logger is None:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items())
            logger = get_broker_logger(
                name="rocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=MESSAGE_ID_CHARS,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-{MESSAGE_ID_CHARS}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger
