"""What makes a task's sends numbered ones: who it is, which batch this is, and what it sent before.

The producer is one task number of one query, the epoch is the batch; the broker then stores each row once
(decision 010). Pure, but for the question to a broker whether it can do that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tandemmq.errors import MessageIllegal, NotPermitted
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.codec import decode_kv_table
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.exactly_once import CAPABILITY, CLAIM_VERSION, render_claim
from tandemmq.spark.name_servers import accept
from tandemmq.spark.sink.encode import Shipment
from tandemmq.spark.wire import WireConnection

Pins = dict[str, tuple[MessageQueue, ...]]
"""Topic -> its queues, in an order that stays."""

_PRODUCER_BYTES = 12


class OnceRun:
    """Of one task attempt. `query`: what names the query or write, also after a restart."""

    def __init__(self, query: str, partition_id: int, epoch: int, pins: Pins) -> None:
        name = f"{query}\0{partition_id}".encode()
        self._producer = hashlib.blake2b(name, digest_size=_PRODUCER_BYTES).hexdigest()
        self.epoch = epoch
        self._after: dict[tuple[object, bool], str] = {}
        self._pins = pins

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Raises MessageIllegal for a topic that was not named before."""
        queues = self._pins.get(topic)
        if queues is None:
            raise MessageIllegal(
                f"a row goes to the topic {topic!r}; the option topics names {', '.join(sorted(self._pins))}"
            )
        return queues

    def claim(self, shipment: Shipment) -> str:
        """The properties that number a shipment; asked once for each, in the order of the sends.

        Delayed messages go before the others of their rows, so they are numbered apart.
        """
        place = (shipment.queue, shipment.is_batch)
        producer = self._producer if shipment.is_batch else f"{self._producer}-single"
        claim = render_claim(producer, self.epoch, self._after.get(place, ""))
        self._after[place] = shipment.last_key
        return claim


def require_once(connection: WireConnection, address: str, timeout_s: float) -> None:
    """Returns when the broker stores numbered sends once.

    Raises:  NotPermitted for one that would store repeats; what the request fails with.
    """
    command = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    table = decode_kv_table(accept(connection.request(command, timeout_s)).body)
    if table.get(CAPABILITY) != CLAIM_VERSION:
        version = table.get("brokerVersionDesc", "of unknown version")
        raise NotPermitted(
            f"semantics exactly-once: the broker at {address} ({version}) cannot store sends once."
            " It needs brokers of TandemMQ with messageIndexEnable=true; at-least-once works with any broker,"
            " with one UNIQ_KEY for all repeats of a row"
        )
