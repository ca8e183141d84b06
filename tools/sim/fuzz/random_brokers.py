"""A name server and two brokers in memory that answer a proxy at random: mostly plausibly, sometimes with
other fields, a damaged body, another code, an unreadable frame, silence, or the end of the connection. Now
and then a broker sends a request of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from sim.dice import Dice
from sim.fuzz.corpus import CLIENT_ID, CLUSTER, GROUP, TOPIC, fields_of
from sim.fuzz.mutate import NASTY_TEXTS, flip
from sim.memory import MemoryNetwork
from tandemmq.errors import LocalProtocolError
from tandemmq.protocol.bodies.client import encode_consumer_list
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    encode_cluster_info,
    encode_topic_route,
)
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.catalogue import CATALOGUE
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, encode_record, tag_hash_of

NAME_SERVER: Final = ("names", 9876)
BROKERS: Final = {"fuzz-a": ("fuzz-a", 10911), "fuzz-b": ("fuzz-b", 10911)}
_KINDS: Final = (
    "NORMAL",
    "NORMAL",
    "MIXED",
    "MIXED",
    "FIFO",
    "DELAY",
    "TRANSACTION",
    "UNSPECIFIED",
    "nonsense",
)
_PUSHES: Final = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
)


class RandomBrokers:
    """The servers; `start` opens their ports."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    async def start(self, network: MemoryNetwork) -> None:
        for host, port in (NAME_SERVER, *BROKERS.values()):
            await network.listen(host, port, lambda: _Connection(self.serve))

    def serve(self, command: Command, transport: asyncio.Transport) -> None:
        """Answers a request of the proxy, or does not."""
        dice = self._dice
        if dice.happens(2):
            transport.write(self._push())
        if command.is_oneway or command.is_response:
            return
        fate = dice.pick_weighted(((900, ""), (30, "noise"), (10, "silence"), (10, "end")))
        if fate == "noise":
            transport.write(flip(self._answer(command), dice))
        elif fate == "end":
            transport.abort()
        elif not fate:
            transport.write(self._answer(command))

    def _answer(self, command: Command) -> bytes:
        dice = self._dice
        code, fields, body = self._plausible(command)
        if dice.happens(5):
            code = dice.pick((*ResponseCode, -1, 999))
        if dice.happens(5):
            body = flip(body, dice) if dice.happens(70) else body[: dice.below(len(body) + 1)]
        if dice.happens(8) and fields:
            name = dice.pick(list(fields))
            if dice.happens(30):
                del fields[name]
            else:
                fields[name] = dice.pick(NASTY_TEXTS)
        remark = dice.pick(NASTY_TEXTS) if dice.happens(10) else None
        try:
            return encode_frame(command.reply(code, remark=remark, body=body, fields=fields))
        except LocalProtocolError:
            return encode_frame(command.reply(code))

    def _plausible(self, command: Command) -> tuple[int, dict[str, str], bytes]:
        """Returns the code, the fields and the body of an answer."""
        row = CATALOGUE.get(command.code)
        fields = {} if row is None or row.response is None else fields_of(row.response)
        if command.code in (RequestCode.POP_MESSAGE, RequestCode.PULL_MESSAGE):
            return self._messages(command.code, fields)
        make = _BODIES.get(command.code)
        return 0, fields, b"" if make is None else make(self._dice)

    def _messages(self, code: int, fields: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        dice = self._dice
        count = dice.pick((0, 0, 1, 1, 3, 40))
        if not count:
            none = (
                ResponseCode.POLLING_TIMEOUT
                if code == RequestCode.POP_MESSAGE
                else ResponseCode.PULL_NOT_FOUND
            )
            return none, fields, b""
        start = dice.below(100)
        if code == RequestCode.POP_MESSAGE:
            offsets = ",".join(str(start + index) for index in range(count))
            fields |= {"startOffsetInfo": f"0 0 {start}", "msgOffsetInfo": f"0 0 {offsets}"}
            fields |= {"popTime": "1700000000000", "invisibleTime": "60000"}
            fields.pop("orderCountInfo", None)
            fields["tandemRenewable"] = dice.pick(("true", "false"))
        return 0, fields, b"".join(_record(start + index, dice) for index in range(count))

    def _push(self) -> bytes:
        """Returns a request of a broker."""
        dice = self._dice
        code = dice.pick(_PUSHES)
        row = CATALOGUE[code]
        fields = {} if row.request is None else fields_of(row.request)
        if fields and dice.happens(30):
            fields[dice.pick(list(fields))] = dice.pick(NASTY_TEXTS)
        body = _record(dice.below(100), dice)
        flag = 2 if dice.happens(50) else 0
        if dice.happens(20):
            body = flip(body, dice)
        try:
            return encode_frame(
                Command(code=code, flag=flag, opaque=dice.below(1000), body=body, extra_fields=fields)
            )
        except LocalProtocolError:
            return b""


class _Connection(asyncio.Protocol):
    """The servers' end of a connection."""

    def __init__(self, serve: Callable[[Command, asyncio.Transport], None]) -> None:
        self._serve = serve
        self._decoder = FrameDecoder()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for command in self._decoder.feed(data):
            self._serve(command, self._transport)


def _record(offset: int, dice: Dice) -> bytes:
    properties = {"UNIQ_KEY": f"key-{offset}", "PGROUP": TOPIC}
    if dice.happens(30):
        names = (
            "TAGS",
            "KEYS",
            "DELAY",
            "RECONSUME_TIME",
            "TIMER_DELIVER_MS",
            "__SHARDINGKEY",
            "UNIQ_KEY",
            "1ST_POP_TIME",
        )
        properties[dice.pick(names)] = dice.pick(NASTY_TEXTS).replace("\x01", "").replace("\x02", "")[:1000]
    encoded = encode_properties(properties)
    new = NewRecord(
        topic=TOPIC,
        queue_id=0,
        body=b"body",
        properties=encoded,
        born_at_ms=1,
        born_host=bytes(8),
        retry_count=dice.pick((0, 0, 0, 1, 100, 2**31 - 1)),
        tag_hash=tag_hash_of(encoded),
    )
    return bytes(
        encode_record(
            new, queue_offset=offset, log_offset=1_000 + offset, stored_at_ms=1, store_host=bytes(8)
        )
    )


def _route(dice: Dice) -> bytes:
    brokers = tuple(
        BrokerData(
            broker_name=name, cluster=CLUSTER, addresses={dice.pick((0, 0, 0, 0, 1)): f"{host}:{port}"}
        )
        for name, (host, port) in BROKERS.items()
    )
    queues = tuple(
        QueueData(
            broker_name=name,
            permission=dice.pick((6, 6, 6, 6, 4, 2, 0)),
            read_queue_count=dice.pick((1, 4, 4, 4, 0)),
            write_queue_count=dice.pick((1, 4, 4, 4, 0)),
        )
        for name in BROKERS
    )
    return encode_topic_route(TopicRoute(brokers=brokers, queues=queues))


def _cluster(_: Dice) -> bytes:
    brokers = {
        name: BrokerData(broker_name=name, cluster=CLUSTER, addresses={0: f"{host}:{port}"})
        for name, (host, port) in BROKERS.items()
    }
    return encode_cluster_info(ClusterInfo(brokers=brokers, clusters={CLUSTER: tuple(BROKERS)}))


_BODIES: Final[dict[int, Callable[[Dice], bytes]]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_BROKER_CLUSTER_INFO: _cluster,
    RequestCode.GET_TOPIC_CONFIG: lambda dice: encode_body(
        TopicConfig(name=TOPIC, attributes={"message.type": dice.pick(_KINDS)})
    ),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: lambda dice: encode_body(
        SubscriptionGroupConfig(name=GROUP, is_orderly=dice.happens(30))
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda _: encode_consumer_list((CLIENT_ID, "c1")),
}
