"""The tools that read waiting messages, transactions and traces. A method's docstring is what an assistant
reads about the tool.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from tandemmq.errors import BadRequest
from tandemmq.manage.cluster import read_cluster
from tandemmq.manage.delayed import read_all_waiting
from tandemmq.manage.messages import GROUPS_MAX, find_records, read_group_states
from tandemmq.manage.tools import Target, Tools, without_master
from tandemmq.manage.traces import read_trace
from tandemmq.manage.transactions import read_all_transactions
from tandemmq.mcp.answers import (
    UNTRUSTED,
    Facts,
    Limit,
    Search,
    TopicName,
    cut,
    facts,
    matching,
    name_failures,
    name_silent,
    read_now_ms,
    rows_of,
    text,
)

# The columns of the answers.
_WAITING: Final = "broker=broker_name topic message_id unique_key keys tags stored_at due_at level"
_TRANSACTION: Final = (
    "broker=broker_name topic producer_group message_id unique_key keys tags born_at stored_at checks"
)
_SEND: Final = "group client topic kind sent_at took_ms is_ok broker"
_DELIVERY: Final = "group client begun_at ended_at took_ms retries=retry_count is_ok outcome"
_OUTCOME: Final = "group client ended_at state is_from_check"
_RECALL: Final = "group client recalled_at is_ok"


@dataclass(frozen=True, slots=True)
class MessageReads:
    """The reads of messages that brokers hold back, and of traces, with the rights of the credentials that
    their requests are signed with.
    """

    cluster: Tools

    async def list_waiting_messages(self, search: Search = "", limit: Limit = 50) -> Facts:
        """Lists messages that wait on delay levels or for a time of their own, the first due first, and the
        number that waits by level and topic. `is_cut`: more wait than are listed and counted by topic.
        """
        masters, missing = await self._masters()
        found = await read_all_waiting(self.cluster, masters, read_now_ms())
        levels = [
            {
                "broker": target.broker_name,
                "delay_seconds": one.delay_ms / 1000,
                **facts(one, "level waiting next_at"),
            }
            for target, one in found.levels
        ]
        topics = Counter(one.topic for one in found.messages)
        return {
            **cut("levels", levels, limit),
            "is_cut": found.is_cut,
            "incomplete": [*missing, *name_failures(found.failed)],
            "note": UNTRUSTED,
            "untrusted": {
                **cut("messages", matching(rows_of(found.messages, _WAITING), search), limit),
                "messages_by_topic": dict(topics.most_common(limit)),
                "timers_counted_by_brokers": dict(found.timer_counts.most_common(limit)),
            },
        }

    async def list_transactions(self, search: Search = "", limit: Limit = 50) -> Facts:
        """Lists open transactions, the oldest first, and those that brokers gave up because no producer
        reported the outcome, the newest first. `is_cut`: more are open than are read, and some of those
        listed may have ended.
        """
        masters, missing = await self._masters()
        found = await read_all_transactions(self.cluster, masters)
        return {
            "is_cut": found.is_cut,
            "incomplete": [*missing, *name_failures(found.failed)],
            "note": UNTRUSTED,
            "untrusted": {
                **cut("open", matching(rows_of(found.opened, _TRANSACTION), search), limit),
                **cut("given_up", matching(rows_of(found.discarded, _TRANSACTION), search), limit),
            },
        }

    async def trace_message(
        self,
        unique_key: Annotated[str, text("The unique key of the message.", 1000)],
        limit: Limit = 50,
    ) -> Facts:
        """Shows the trace of a message, also of a deleted one: its sends, the deliveries to consumers, the
        outcome of its transaction, and cancellations. Only clients with tracing write traces.
        """
        found = await read_trace(self.cluster, unique_key)
        return {
            "is_traced": bool(found),
            "note": UNTRUSTED,
            "untrusted": {
                **cut("sends", rows_of(found.sends, _SEND), limit),
                **cut("deliveries", rows_of(found.handlings, _DELIVERY), limit),
                **cut("transaction_outcomes", rows_of(found.ends, _OUTCOME), limit),
                **cut("cancellations", rows_of(found.recalls, _RECALL), limit),
            },
        }

    async def list_groups_of_message(
        self,
        topic: TopicName,
        message_id: Annotated[str, text("Its message id, or its unique key.", 1000)],
        limit: Annotated[int, Field(ge=1, le=GROUPS_MAX, description="The most groups in the answer.")] = 50,
    ) -> Facts:
        """Shows for each consumer group of the topic whether it has consumed a message: done, waits, skipped
        because of its tag, or unknown with the reason.
        """
        found = await find_records(self.cluster, message_id, topic)
        if not found:
            raise BadRequest(f"topic {topic!r} has no message {message_id!r}")
        record = found[0]
        states = await read_group_states(self.cluster, record, groups_max=limit + 1)
        return {
            **facts(record, "queue=queue_id queue_offset stored_at"),
            "groups": rows_of(states[:limit], "group state members mode"),
            "has_more": len(states) > limit,
        }

    async def _masters(self) -> tuple[list[Target], list[str]]:
        """Returns the masters that answer, and the names of brokers whose part is missing."""
        reading = await read_cluster(self.cluster, read_now_ms())
        unled = without_master(one.target for one in reading.brokers)
        missing = [*name_silent(reading.brokers), *(f"{name}: has no master" for name in unled)]
        return reading.masters, missing
