"""Requests and replies between clients: a producer sends a request and waits, a consumer answers
(spec semantics 3.10).

A broker delivers a reply over the requester's own connection, so the requester first sends a heartbeat to
each master of the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tandemmq.api import broker_send
from tandemmq.client.call_values import to_timeout
from tandemmq.client.instance import SILENT_S, ClientInstance
from tandemmq.client.producer.outbox import Outbox
from tandemmq.client.producer.results import SendResult
from tandemmq.client.route_cache import RouteView
from tandemmq.errors import MessageIllegal, NotServed, RequestRejected, RequestTimeout
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.message import (
    Message,
    ReceivedMessage,
    check_message,
    require_received,
    wire_properties,
)
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.topic_names import reply_topic
from tandemmq.remoting.options import render_address

REPLY_TYPE = "reply"
_COPIED = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)


async def send_reply(
    instance: ClientInstance,
    group: str,
    request: ReceivedMessage,
    body: bytes,
    *,
    properties: Mapping[str, str] | None = None,
    timeout_s: float,
) -> None:
    """Sends a reply; returns once the requester has received it.

    The reply goes to the broker group that the request came from, because the requester is connected to the
    group's master. If the master has changed since the request was stored, or was away during this call, the
    requester connects to it within a moment: the reply is repeated until then, or until the deadline.

    Raises:  BadRequest for a wrong timeout, MessageIllegal when the message is not a request, NoRoute without
             a master until the deadline, RequestRejected when the requester is no longer connected.
    """
    require_received(request)
    timeout_s = to_timeout(timeout_s)
    asked = request.properties
    missing = [name for name in (names.CLUSTER, *_COPIED[:2]) if not asked.get(name)]
    if missing:
        raise MessageIllegal(f"the message requests no reply: it lacks the property {missing[0]}")
    message = Message(topic=reply_topic(asked[names.CLUSTER]), body=body, properties=properties or {})
    check_message(message)
    now_ms = instance.clock.now_ms()
    pairs = wire_properties(message, instance.unique_keys.next(now_ms))
    pairs |= {name: asked[name] for name in _COPIED if name in asked}
    pairs[names.MESSAGE_TYPE] = REPLY_TYPE
    header = SendRequestV2(
        producer_group=group,
        topic=message.topic,
        default_topic="TBW102",
        default_topic_queue_count=1,
        queue_id=0,
        sys_flag=0,
        born_at_ms=now_ms,
        flag=0,
        properties=encode_properties(pairs).decode(),
        broker_name=request.broker_name,
    )
    stored_at: str | None = render_address(request.record.store_address)

    async def ask(address: str, remaining_s: float) -> None:
        nonlocal stored_at
        # Only of the first attempt: after an outage, the requester may still be about to connect again.
        has_left, stored_at = address == stored_at, None
        try:
            await broker_send.send_reply(instance.remoting, address, header, body, timeout_s=remaining_s)
        except RequestRejected as error:
            if error.code != ResponseCode.SYSTEM_ERROR or has_left:
                raise
            raise NotServed(error.remark, code=error.code) from None

    topic = instance.namespace.wrap(request.topic)  # a retry topic may have no route
    await instance.call_master(topic, request.broker_name, ask, timeout_s=timeout_s)


class Requests:
    """The requests of one producer that wait for a reply."""

    def __init__(self, instance: ClientInstance, outbox: Outbox) -> None:
        self._instance = instance
        self._outbox = outbox

    async def ask(
        self,
        message: Message,
        view: RouteView,
        timeout_s: float,
        on_stored: Callable[[SendResult], object] | None = None,
    ) -> ReceivedMessage:
        """Sends the request and returns the reply; `on_stored` is called in between.

        Raises:  RequestTimeout when the request was stored and no reply came in time; Busy when too many
                 requests wait; the errors of sending.
        """
        await self._introduce(view)
        correlation_id = self._instance.chance.token_bytes(16).hex()
        clock, questions = self._instance.clock, self._instance.questions
        timeout_s = to_timeout(timeout_s)
        ends_at = clock.monotonic() + timeout_s
        system = {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: self._instance.client_id,
            names.TTL: str(int(timeout_s * 1000)),
        }
        reply = questions.expect_reply(correlation_id)
        try:
            send_s = min(timeout_s, self._outbox.options.timeout_s)
            stored = await (await self._outbox.start_system(message, system, 0, send_s))
            if on_stored is not None:
                on_stored(stored)
            while (remaining_s := ends_at - clock.monotonic()) > 0:
                done, _ = await asyncio.wait((reply,), timeout=min(remaining_s, SILENT_S))
                if done:
                    return reply.result()
                self._refresh_masters(view.topic)
            raise RequestTimeout(
                f"the request to topic {message.topic!r} was stored, but no reply came within {timeout_s:g} s"
            )
        finally:
            questions.forget_reply(correlation_id)

    async def _introduce(self, view: RouteView) -> None:
        """Sends a heartbeat to the masters of the topic that do not know this client, because they could not
        deliver a reply.
        """
        await asyncio.gather(*map(self._instance.introduce, self._strangers(view)))

    def _refresh_masters(self, topic: str) -> None:
        """Refreshes the route, because the reply comes from the group's master, and another broker may be
        master by now.
        """
        routes = self._instance.routes
        routes.refresh_soon(topic)
        view = routes.get(topic)
        if view is not None and self._strangers(view):
            self._instance.tasks.start("introduce", self._introduce(view))

    def _strangers(self, view: RouteView) -> list[str]:
        """Returns the masters that have no connection to this client, or never answered a heartbeat. Those
        that did get one over each new connection.
        """
        known, open_channel = self._instance.broker_versions, self._instance.remoting.open_channel
        return [one for one in sorted(_masters(view)) if one not in known or open_channel(one) is None]


def _masters(view: RouteView) -> set[str]:
    addresses = (view.master_address(queue.broker_name) for queue in view.publish_queues)
    return {address for address in addresses if address is not None}
