"""Membership of clients at a broker: heartbeats, leaving, who is in a group (spec remoting 9.4)."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.api.calls import CALL_TIMEOUT_S, ask, call
from tandemmq.protocol import rejections
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import (
    ClientConfigCheck,
    Heartbeat,
    LockRequest,
    decode_consumer_list,
    decode_lock_answer,
    encode_client_config_check,
    encode_heartbeat,
    encode_lock_request,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.route import ConsumerListRequest, UnregisterClientRequest
from tandemmq.remoting.client import RemotingClient


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The broker's version number: features such as SQL92 filters depend on it."""

    broker_version: int


async def send_heartbeat(
    client: RemotingClient, address: str, heartbeat: Heartbeat, *, timeout_s: float = CALL_TIMEOUT_S
) -> HeartbeatAnswer:
    """Say who we are and what we subscribe to; brokers forget a client after 120 s of silence."""
    body = encode_heartbeat(heartbeat)
    answer = await call(client, address, RequestCode.HEART_BEAT, body=body, timeout_s=timeout_s)
    return HeartbeatAnswer(answer.version)


async def check_client_config(
    client: RemotingClient, address: str, check: ClientConfigCheck, *, timeout_s: float = CALL_TIMEOUT_S
) -> None:
    """Does the broker understand a subscription. Raises RequestRejected when it does not."""
    body = encode_client_config_check(check)
    await call(client, address, RequestCode.CHECK_CLIENT_CONFIG, body=body, timeout_s=timeout_s)


async def unregister_client(
    client: RemotingClient,
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Leave a group at once, so that the others of the group share its queues without delay."""
    header = UnregisterClientRequest(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    await call(client, address, RequestCode.UNREGISTER_CLIENT, header, timeout_s=timeout_s)


async def query_consumer_ids(
    client: RemotingClient, address: str, group: str, *, timeout_s: float = CALL_TIMEOUT_S
) -> tuple[str, ...]:
    """Client ids of the group's online members; empty when the broker knows none."""
    header = ConsumerListRequest(consumer_group=group)
    answer = await ask(client, address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, timeout_s=timeout_s)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        # Brokers answer 1 when nobody is online, never 0 with an empty list.
        return ()
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return decode_consumer_list(answer.body)


async def lock_queues(
    client: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    queues: tuple[MessageQueue, ...],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> frozenset[MessageQueue]:
    """The queues of the broker that this client now holds exclusively, for 60 s (spec remoting 9.8)."""
    body = encode_lock_request(LockRequest(client_id=client_id, consumer_group=group, queues=queues))
    answer = await call(client, address, RequestCode.LOCK_BATCH_MQ, body=body, timeout_s=timeout_s)
    return decode_lock_answer(answer.body)


async def unlock_queues(
    client: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    queues: tuple[MessageQueue, ...],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> None:
    """Give exclusive queues up."""
    body = encode_lock_request(LockRequest(client_id=client_id, consumer_group=group, queues=queues))
    await call(client, address, RequestCode.UNLOCK_BATCH_MQ, body=body, timeout_s=timeout_s)
