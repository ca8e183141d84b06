"""The broker's locks on the queues of an orderly consumer: taken, renewed every 20 s, given back.

Only the master of a queue locks (spec replication 8.4). While it is away nothing can be locked or renewed: a
lock goes on for 30 s, then its queue rests until the master is back.
Source:  spec semantics 10.5, 10.6.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from tandemmq.api import broker_client
from tandemmq.client.consumer.queue_reader import ReaderSeams
from tandemmq.client.consumer.replica_choice import MASTER_ID
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

RENEW_S: Final = 20.0
TRY_AGAIN_S: Final = 1.0
"""For queues whose lock was refused or has run out."""
CALL_TIMEOUT_S: Final = 1.0


class QueueLockKeeper:
    """Asks the masters, one request per broker for all queues."""

    def __init__(self, seams: ReaderSeams) -> None:
        self._seams = seams
        self._failing: set[str] = set()

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, bool]:
        """Whether each queue is ours now; queues without an answer are missing."""
        granted: dict[MessageQueue, bool] = {}
        for broker_name, asked in _by_broker(queues).items():
            try:
                held = await self._ask(broker_name, asked)
            except TandemError as error:
                self._note_failure(broker_name, error)
                continue
            if held is not None:
                self._failing.discard(broker_name)
                granted |= {queue: queue in held for queue in asked}
        return granted

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Give the queues to whoever asks next; a broker that is not reached frees them after 60 s."""
        instance = self._seams.instance
        for broker_name, given_up in _by_broker(queues).items():
            address = self._master_of(given_up[0])
            if address is None:
                continue
            try:
                await broker_client.unlock_queues(
                    instance.remoting,
                    address,
                    self._seams.group,
                    instance.client_id,
                    tuple(given_up),
                    timeout_s=CALL_TIMEOUT_S,
                )
            except TandemError as error:
                self._note_failure(broker_name, error)

    async def _ask(self, broker_name: str, queues: list[MessageQueue]) -> frozenset[MessageQueue] | None:
        """None when the broker has no master now."""
        instance = self._seams.instance
        address = self._master_of(queues[0])
        if address is None:
            return None
        return await broker_client.lock_queues(
            instance.remoting,
            address,
            self._seams.group,
            instance.client_id,
            tuple(queues),
            timeout_s=CALL_TIMEOUT_S,
        )

    def _master_of(self, queue: MessageQueue) -> str | None:
        view = self._seams.instance.routes.get(queue.topic)
        return None if view is None else view.addresses.get(queue.broker_name, {}).get(MASTER_ID)

    def _note_failure(self, broker_name: str, error: TandemError) -> None:
        """One line per outage."""
        if broker_name not in self._failing:
            self._failing.add(broker_name)
            log.warning(events.QUEUE_LOCK_FAILED, extra={"broker": broker_name, "error": str(error)})


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers
