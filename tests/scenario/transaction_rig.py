"""A plain transactional producer: half messages, their ends, and the broker's checks."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tandemmq.broker.broker import Broker
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.record import Record, decode_record
from tandemmq.protocol.requests.send import CheckTransactionRequest, EndTransactionRequest, SendResponse
from tandemmq.remoting.channel import Channel

from broker_rig import Peer, records_of  # isort: skip

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
FAST = {"transaction_timeout_ms": 50, "transaction_check_period_ms": 100}


class TransactionPeer(Peer):
    """A producer that records checks and answers them with `decision` (None: not at all)."""

    def __init__(self, broker: Broker, decision: int | None = None) -> None:
        super().__init__(broker, {int(RequestCode.CHECK_TRANSACTION_STATE): self._on_check})
        self.decision = decision
        self.age_ms = 0
        self.asked: list[tuple[CheckTransactionRequest, Record]] = []

    async def send_half(self, topic: str = "T1", body: bytes = b"pay", **properties: str) -> SendResponse:
        wanted = {"TRAN_MSG": "true", "PGROUP": "PG", **properties}
        now_ms = int(time.time() * 1000)
        answer = await self.send(
            topic, body, sys_flag=4, queue_id=2, properties=wanted, born_at_ms=now_ms - self.age_ms
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.decode(SendResponse)

    async def end(self, half: SendResponse, decision: int, **changes: object) -> Command:
        return await self.ask(RequestCode.END_TRANSACTION, self._end_of(half, decision, changes))

    async def end_oneway(self, half: SendResponse, decision: int) -> None:
        """Ends a transaction as all Java producers do, without an answer."""
        header = self._end_of(half, decision, {})
        command = Command.request(RequestCode.END_TRANSACTION, header, oneway=True)
        await self.client.send_oneway(self.address, command)

    def _end_of(
        self, half: SendResponse, decision: int, changes: Mapping[str, object]
    ) -> EndTransactionRequest:
        values: dict[str, object] = {
            "producer_group": "PG",
            "half_queue_offset": half.queue_offset,
            "log_offset": decode_message_id(half.message_id).log_offset,
            "decision": decision,
            "unique_key": half.transaction_id or "",
            **changes,
        }
        return EndTransactionRequest(**values)  # type: ignore[arg-type]  # real fields

    async def bodies(self, topic: str = "T1", queue_id: int = 2) -> list[bytes]:
        return [record.body for record in await self.read(topic, queue_id)]

    async def read(self, topic: str = "T1", queue_id: int = 2) -> list[Record]:
        answer = await self.pull(topic, queue_id=queue_id)
        return records_of(answer) if answer.code == ResponseCode.SUCCESS else []

    def _on_check(self, channel: Channel, command: Command) -> Command | None:
        header = command.decode(CheckTransactionRequest)
        self.asked.append((header, decode_record(command.body)))
        if self.decision is not None:
            end = EndTransactionRequest(
                producer_group="PG",
                half_queue_offset=header.half_queue_offset,
                log_offset=header.log_offset,
                decision=self.decision,
                unique_key=header.unique_key or "",
                is_from_check=True,
            )
            channel.send(Command.request(RequestCode.END_TRANSACTION, end, oneway=True))
        return None
