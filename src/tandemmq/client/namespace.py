"""Namespaces: an application uses the name `Orders`, brokers know `shop%Orders`.

RocketMQ has two kinds of namespaces. The older kind is a prefix of topic and group names, which only clients
of the namespace hide (`Namespace`). The newer kind changes no names: each request states its namespace, and
the servers apply it (`request_mark`). Pure.
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
    """Translates names of one namespace; without a namespace every name stays the same."""

    __slots__ = ("mark", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.mark = encode_properties({INSTANCE_ID: name})
        """The property added to each message sent in this namespace; empty without a namespace."""

    def wrap(self, name: str) -> str:
        """Returns a topic or group as brokers know it. Wrapped names and system names stay the same."""
        return wrap_name(self.name, name) if self.name else name

    def unwrap(self, name: str) -> str:
        """Returns the name as the application knows it; a name of another namespace stays the same."""
        return unwrap_name(self.name, name) if self.name else name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Returns the queue with its topic name wrapped."""
        if not self.name:
            return queue
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Returns the queue with its topic name unwrapped."""
        if not self.name:
            return queue
        return MessageQueue(self.unwrap(queue.topic), queue.broker_name, queue.queue_id)


def find_namespace(options: ClientOptions, namesrv: str) -> Namespace:
    """Returns the namespace of the options, else that of a name server's host such as
    `MQ_INST_1_shop.example.com`.
    """
    found = _ENDPOINT.match(namesrv)
    return Namespace(options.namespace or (found[1] if found else ""))


def request_mark(options: ClientOptions) -> Callable[[Command], None] | None:
    """Returns the function that marks each outgoing request: it adds the newer namespace, then the signature,
    which covers the namespace. Returns None when there is nothing to add.
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
