"""GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309): a tool's questions to a consumer, which
the broker passes on over the consumer's own connection. Source: spec semantics 15, spec remoting 9.11.
"""

from __future__ import annotations

from tandemmq.broker.clients.consumer_table import ConsumerTable
from tandemmq.broker.clients.membership import Member
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import BrokerUnreachable, Busy, RequestRejected, RequestTimeout
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest, RunningInfoRequest
from tandemmq.remoting.channel import Channel
from tandemmq.store.message_store import MessageStore

RELAY_TIMEOUT_S = 10.0


class RelayHandlers:
    """Asks consumers on behalf of tools."""

    def __init__(
        self,
        broker_name: str,
        *,
        store: MessageStore,
        consumers: ConsumerTable,
        topics: TopicTable,
        groups: GroupTable,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._consumers = consumers
        self._topics = topics
        self._groups = groups

    async def handle_running_info(self, channel: Channel, command: Command) -> Command:
        header = command.decode(RunningInfoRequest)
        member = self._find(header.consumer_group, header.client_id)
        return await _relay(member, command, Command.request(command.code, header))

    async def handle_consume_directly(self, channel: Channel, command: Command) -> Command:
        """The message goes along as it is stored."""
        header = command.decode(ConsumeDirectlyRequest)
        member = self._find(header.consumer_group, header.client_id)
        topic = self._topics.get(header.topic or "")
        group = self._groups.get(header.consumer_group)
        question = ConsumeDirectlyRequest(
            consumer_group=header.consumer_group,
            client_id=member.client_id,
            message_id=header.message_id,
            broker_name=self._broker_name,
            topic=header.topic,
            topic_sys_flag=topic.sys_flag if topic is not None else None,
            group_sys_flag=group.sys_flag if group is not None else None,
        )
        body = self._read(header.message_id or "")
        return await _relay(member, command, Command.request(command.code, question, body=body))

    def _find(self, group: str, client_id: str | None) -> Member:
        member = self._consumers.find_client(group, client_id or "")
        if member is None:
            raise RequestRejected(
                f"no consumer {(client_id or '')[:160]!r} of the group {group[:160]!r} is online",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return member

    def _read(self, message_id: str) -> bytes:
        log_offset = decode_message_id(message_id).log_offset
        record = self._store.read_record(log_offset)
        if record is None:
            raise RequestRejected(
                f"no message is stored at log offset {log_offset}", code=ResponseCode.SYSTEM_ERROR
            )
        return bytes(record)


async def _relay(member: Member, asked: Command, question: Command) -> Command:
    """The consumer's answer, as the answer to `asked`."""
    try:
        answer = await member.channel.request(question, RELAY_TIMEOUT_S)
    except RequestTimeout:
        raise RequestRejected(
            f"the consumer {member.client_id} did not answer within {RELAY_TIMEOUT_S:.0f} s",
            code=ResponseCode.CONSUME_MSG_TIMEOUT,
        ) from None
    except (BrokerUnreachable, Busy) as error:
        raise RequestRejected(
            f"the consumer {member.client_id}: {error}", code=ResponseCode.SYSTEM_ERROR
        ) from None
    return asked.reply(answer.code, remark=answer.remark, body=answer.body, fields=answer.fields)
