"""The chapter of `Admin` about stored messages: searches by message id and by key."""

from __future__ import annotations

import asyncio

from tandemmq.api import broker_admin
from tandemmq.client.admin_base import AdminClient, serving_replicas
from tandemmq.errors import BrokerUnreachable, NotPermitted, ProtocolError, RequestRejected, RequestTimeout
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.record import Record
from tandemmq.protocol.requests.consume import QueryMessageRequest
from tandemmq.remoting.options import render_address

VIEWS_AT_ONCE_MAX = 16
"""The number of brokers that are asked for one message at the same time."""


class MessageAdmin(AdminClient):
    """The part of `Admin` for stored messages."""

    async def find_by_id(self, message_id: str) -> Record | None:
        """Returns the message with a broker's message id; None if no broker has it.

        The id contains the address at which the broker stored the message. A client of another network
        knows that broker by another address, and after a failover another broker has the message: the
        brokers are asked at the addresses that the name server announces to this client, and the record
        shows which answer is the right one. The address in the id is never dialled unless it is announced.
        Raises:  BadRequest for an invalid message id; BrokerUnreachable or NotPermitted if the message was
                 not found and a broker could not be asked, or refused.
        """
        where = decode_message_id(message_id)
        stored_at = render_address((where.ip, where.port))
        info = await self.cluster_info()
        known = {address for broker in info.brokers.values() for address in broker.addresses.values()}
        addresses = sorted(known, key=lambda one: (one != stored_at, one))
        unreachable: list[str] = []
        denial: NotPermitted | None = None

        async def view(address: str) -> Record | None:
            nonlocal denial
            try:
                return await broker_admin.view_message(self._remoting, address, where.log_offset)
            except (BrokerUnreachable, RequestTimeout) as error:
                unreachable.append(str(error))
            except NotPermitted as error:
                denial = error
            except (RequestRejected, ProtocolError):
                pass  # no message begins at this offset of another broker's log
            return None

        begin = 0
        while begin < len(addresses):
            # The broker that stored the message is asked alone: mostly it has it.
            end = begin + (1 if addresses[begin] == stored_at else VIEWS_AT_ONCE_MAX)
            for record in await asyncio.gather(*map(view, addresses[begin:end])):
                if record is not None and record.store_address == (where.ip, where.port):
                    return record
            begin = end
        if unreachable:
            raise BrokerUnreachable(f"no other broker has message {message_id}; {'; '.join(unreachable)}")
        if denial is not None:
            raise denial
        return None

    async def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_at_ms: int = 0,
        end_at_ms: int = broker_admin.END_OF_TIME_MS,
    ) -> list[Record]:
        """Returns messages that carry the key and were stored between these times, from every broker of the
        topic.
        """
        return await self._find(
            QueryMessageRequest(
                topic=topic, key=key, count_max=count_max, begin_at_ms=begin_at_ms, end_at_ms=end_at_ms
            )
        )

    async def find_by_unique_key(self, topic: str, unique_key: str) -> list[Record]:
        """Returns the message with the producer's id; several messages when a send was repeated."""
        return await self._find(
            QueryMessageRequest(
                topic=topic,
                key=unique_key,
                count_max=32,
                begin_at_ms=0,
                end_at_ms=broker_admin.END_OF_TIME_MS,
                is_unique_key=True,
            )
        )

    async def _find(self, header: QueryMessageRequest) -> list[Record]:
        view = await self._view(header.topic)
        records: list[Record] = []
        for address in serving_replicas(view.addresses).values():
            records += await broker_admin.query_messages(self._remoting, address, header)
        return records[: header.count_max]
