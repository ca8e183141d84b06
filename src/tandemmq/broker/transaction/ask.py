"""Asks producers how their transactions ended: CHECK_TRANSACTION_STATE, oneway (spec semantics 17.6)."""

from __future__ import annotations

from tandemmq.broker.clients.producer_table import ProducerTable
from tandemmq.broker.transaction.half import encode_for_check, text_of
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import encode_message_id
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.protocol.requests.send import CheckTransactionRequest
from tandemmq.protocol.topic_names import HALF_TOPIC
from tandemmq.store.outcomes import Appended


class Asker:
    """Picks the members of a producer group in turn."""

    def __init__(self, broker_name: str, producers: ProducerTable) -> None:
        self._broker_name = broker_name
        self._producers = producers
        self._turn = 0

    def ask(self, half: Record, copy: NewRecord, appended: Appended) -> bool:
        """False when no member of the group is online; it is asked again in the next round."""
        members = [m for m in self._producers.members(text_of(half, names.PGROUP)) if not m.channel.is_closed]
        if not members:
            return False
        self._turn += 1
        member = members[self._turn % len(members)]
        log_offset = appended.log_offsets[0]
        header = CheckTransactionRequest(
            half_queue_offset=appended.queue_offset,
            log_offset=log_offset,
            topic=HALF_TOPIC,
            unique_key=half.unique_key,
            transaction_id=half.unique_key,
            message_id=encode_message_id(half.store_host, log_offset),
            broker_name=self._broker_name,
        )
        body = encode_for_check(
            copy,
            half,
            queue_offset=appended.queue_offset,
            log_offset=log_offset,
            at_ms=appended.stored_at_ms,
        )
        member.channel.send(
            Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, body=body, oneway=True)
        )
        return True
