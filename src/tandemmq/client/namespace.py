"""Namespaces: an application says `Orders`, brokers know `shop%Orders`.

RocketMQ has two kinds. The older one is a prefix of the names of topics and groups that only clients of the
namespace do not see (`Namespace`). The newer one changes no names: each request says which namespace it is
of, and the servers see to it (`request_mark`). Pure.
Source:  spec semantics 2.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from tandemmq.client.options import ClientOptions
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import INSTANCE_ID, encode_properties
from tandemmq.protocol.topic_names import unwrap_name, wrap_name

_ENDPOINT: Final = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\.")


class Namespace:
    """The names of one namespace; without a name every other one stays as it is."""

    __slots__ = ("mark", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.mark = encode_properties({INSTANCE_ID: name})
        """The property of each message that is sent here; empty without a name."""

    def wrap(self, name: str) -> str:
        """A topic or group as brokers know it. What is wrapped, and what the system has, stays as it is."""
        return wrap_name(self.name, name) if self.name else name

    def unwrap(self, name: str) -> str:
        """The name as the application knows it; one of another namespace stays as it is."""
        return unwrap_name(self.name, name) if self.name else name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue with the name of its topic wrapped."""
        if not self.name:
            return queue
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """The queue with the name of its topic unwrapped."""
        if not self.name:
            return queue
        return MessageQueue(self.unwrap(queue.topic), queue.broker_name, queue.queue_id)


def find_namespace(options: ClientOptions, namesrv: str) -> Namespace:
    """The namespace of the options, else that of a name server's host `MQ_INST_1_shop.example.com`."""
    found = _ENDPOINT.match(namesrv)
    return Namespace(options.namespace or (found[1] if found else ""))


def request_mark(options: ClientOptions) -> Callable[[Command], None] | None:
    """What marks each request before it leaves: with the newer namespace, then with the signature, which
    covers that. None when nothing is to be added.
    """
    credentials = options.credentials
    sign = None if credentials is None else credentials.sign
    if not options.namespace_v2:
        return sign
    return partial(_mark, options.namespace_v2, sign)


def _mark(name: str, sign: Callable[[Command], None] | None, command: Command) -> None:
    command.extra_fields = {**(command.extra_fields or {}), "nsd": "true", "ns": name}
    if sign is not None:
        sign(command)
