"""The settings of brokers and routers that FastStream composes, and the format of the log lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import BrokerConfig
from faststream._internal.logger import DefaultLoggerStorage
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import IncorrectState

from tandemmq.client.instance import ClientInstance
from tandemmq.integrations.faststream.producer import RocketMQProducer

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

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
