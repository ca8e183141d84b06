"""Transactions through proxies: half messages that any proxy commits, and that proxies ask about.

Invariants: a committed message is delivered, one that was rolled back never; in the end the broker has asked
            about every open one.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from sim.cluster.nodes import BrokerNode
from sim.cluster.work.later import TRANSACTION_GROUP
from sim.cluster.work.node import Item
from sim.proxied.session import Session, producer_settings
from sim.proxied.work import ProxiedWork
from tandemmq.protocol.topic_names import HALF_TOPIC
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code

SendMessageResponse = message_class("SendMessageResponse")
EndTransactionRequest = message_class("EndTransactionRequest")
EndTransactionResponse = message_class("EndTransactionResponse")

PRODUCERS = 2


class PaidWork(ProxiedWork):
    """Producers of transactions, and simple consumers."""

    kind = "paid"
    topic = "ProxiedPaid"
    group = "payees"
    message_type = "TRANSACTION"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._is_booked: dict[int, bool] = {}
        """The application's own data: message number -> True if its work was done, False if undone."""
        self._doubts: dict[int, int] = {}
        """The number of checks that are still left unanswered."""
        self._under_way: set[int] = set()
        """Half messages whose send has no answer yet."""

    def forget(self) -> None:
        super().forget()
        self._under_way = set()

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        self._sessions = [
            Session(self, f"{self.name}-producer{n}", producer_settings(self), self._on_command)
            for n in range(PRODUCERS)
        ]
        return [*super().serve(), *(session.run() for session in self._sessions)]

    async def send_one(self) -> None:
        item, dice = self.new_item(), self.world.dice
        self._under_way.add(item.number)
        client_id = dice.pick(self._sessions).client_id
        answer = await self.ask(
            "SendMessage", self.request_of(item), SendMessageResponse, client_id=client_id
        )
        self._under_way.discard(item.number)
        if answer is None or answer.status.code != Code.OK:
            return
        self.count("sent")
        is_booked = self._is_booked[item.number] = dice.happens(60)
        self.world.note(f"{self.process} {item} is booked: {is_booked}")
        item.end_s = self.world.loop.time()
        item.is_acknowledged = is_booked
        if dice.happens(40):
            self._doubts[item.number] = dice.between(0, 2)
            self.count("left open")
            return
        await self._end(item, answer.entries[0].transaction_id, "SOURCE_CLIENT")

    def _on_command(self, command: Any) -> None:
        if command.WhichOneof("command") != "recover_orphaned_transaction_command":
            self.world.findings.broken.append(f"{self.process} got the command {command}")
            return
        check = command.recover_orphaned_transaction_command
        item = self.book.find(check.message.body)
        if item is None or check.message.system_properties.message_id != self.message_id(item):
            self.world.findings.broken.append(f"{self.process} is asked about {check}, which was never sent")
            return
        self.count("checks")
        self.world.note(f"{self.process} is asked to check {item}")
        if item.number in self._under_way:
            return  # its work is still to come
        doubts = self._doubts.get(item.number, 0)
        if doubts:
            self._doubts[item.number] = doubts - 1
            return
        assert self._scope is not None
        self._scope.start("end", self._end(item, check.transaction_id, "SOURCE_SERVER_CHECK"))

    async def _end(self, item: Item, transaction_id: str, source: str) -> None:
        """Commits a message if its work was done, else rolls it back."""
        is_booked = self._is_booked.get(item.number, False)
        request = EndTransactionRequest(
            topic={"name": self.topic},
            message_id=self.message_id(item),
            transaction_id=transaction_id,
            resolution=enum_number("TransactionResolution", "COMMIT" if is_booked else "ROLLBACK"),
            source=enum_number("TransactionSource", source),
        )
        answer = await self.ask("EndTransaction", request, EndTransactionResponse)
        if answer is None:
            return
        self.world.note(f"{self.process} has ended {item}: {answer.status.code} {answer.status.message}")
        item.end_s = self.world.loop.time()
        self.count("ended" if answer.status.code == Code.OK else "not ended")

    def on_delivery(self, item: Item, where: str, attempt: int) -> None:
        super().on_delivery(item, where, attempt)
        if not self._is_booked.get(item.number):
            self.world.findings.broken.append(f"{where}: {item}, which was not committed")

    def missing(self, master: BrokerNode) -> list[str]:
        """Returns also undecided messages: the scan of the half topic must reach its end."""
        assert master.broker is not None
        assert master.store is not None
        end = master.store.queue_max(HALF_TOPIC, 0)
        settled = master.broker._tables.offsets.committed(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0
        missing = super().missing(master)
        return missing if settled >= end else [*missing, f"half messages {settled}..{end} are not settled"]
