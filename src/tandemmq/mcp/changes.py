"""The tools that change the cluster. Each needs two calls with the same arguments: the first returns a
preview and a confirmation token, the second carries the token and makes the change.

Each change is logged before and after it is made, with its arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.errors import BadRequest
from tandemmq.manage import dead_letters, groups, resets, topics
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.tools import Place, Tools
from tandemmq.mcp.answers import Facts, GroupName, TopicName, as_milliseconds, facts, read_now_ms, text
from tandemmq.mcp.confirm import LIFETIME_S, Confirmations
from tandemmq.protocol.topic_names import check_topic, is_system_group
from tandemmq.telemetry import events

QUEUES_MAX: Final = 100
"""The most queues in a preview; the sums count all."""
RESENT_MAX: Final = 10_000

log = logging.getLogger(__name__)

Token = Annotated[
    str, text("Empty for the preview; then the token that the preview returned.", 100, is_optional=True)
]
Cluster = Annotated[str, text("The cluster; empty if there is only one.", is_optional=True)]


@dataclass(frozen=True, slots=True)
class ClusterChanges:
    """The changes of one cluster, with the rights of the credentials that its requests are signed with."""

    cluster: Tools
    confirmations: Confirmations

    async def create_topic(
        self,
        topic: TopicName,
        queues: Annotated[int, Field(ge=1, le=1024, description="Queues per broker.")] = 8,
        cluster: Cluster = "",
        confirmation_token: Token = "",
    ) -> Facts:
        """Creates a topic on every master of a cluster. Needs a confirmation."""
        arguments = {"topic": topic, "queues": queues, "cluster": cluster}

        async def preview() -> Facts:
            check_topic(topic)
            masters = [one.address for one in await answering_masters(self.cluster, Place(cluster=cluster))]
            known = topic in await self.cluster.cluster_admin.topics()
            return {
                "creates": topic,
                "queues_per_broker": queues,
                "brokers": masters,
                "exists_already": known,
            }

        async def act() -> Facts:
            is_new = await topics.create_topic(self.cluster, topic, cluster=cluster, queue_count=queues)
            return {"created": is_new}

        return await self._confirmed("create_topic", arguments, confirmation_token, preview, act)

    async def delete_topic(
        self, topic: TopicName, cluster: Cluster = "", confirmation_token: Token = ""
    ) -> Facts:
        """Deletes a topic with all of its messages, on every master of a cluster. Needs a confirmation."""

        async def preview() -> Facts:
            found = await topics.read_topic(self.cluster, topic, read_now_ms())
            if found.topic.kind is topics.TopicKind.SYSTEM:
                raise BadRequest(f"{topic} is a topic of the brokers themselves")
            return {
                "deletes": topic,
                "kind": str(found.topic.kind),
                "lost_messages": found.load.count,
                "messages_in_per_second": found.load.in_tps,
                "groups_that_read_it": [one.group for one in found.consumers],
            }

        async def act() -> Facts:
            await topics.delete_in_clusters(self.cluster, topic, [cluster])
            return {"deleted": topic}

        arguments = {"topic": topic, "cluster": cluster}
        return await self._confirmed("delete_topic", arguments, confirmation_token, preview, act)

    async def reset_offsets(
        self,
        group: GroupName,
        topic: TopicName,
        to: Annotated[
            Literal["begin", "end", "time"],
            Field(
                description="begin: all stored messages again; end: skip the backlog; time: from `time` on."
            ),
        ],
        time: Annotated[
            datetime | None,
            Field(
                description="With to=time: the first messages stored at or after it; without a zone, in UTC."
            ),
        ] = None,
        confirmation_token: Token = "",
    ) -> Facts:
        """Moves a consumer group to another position of a topic, whether it runs or not. The preview says how
        many messages are skipped, and how many are consumed again. Needs a confirmation.
        """
        if (to == "time") != (time is not None):
            raise BadRequest("give `time` with to=time, and only then")
        at_ms = as_milliseconds(time)
        position = resets.NewPosition(at_ms if at_ms is not None else END_OF_QUEUE_MS if to == "end" else 0)

        async def preview() -> Facts:
            moves = await resets.preview_reset(self.cluster, group, topic, position)
            return {
                "skipped_messages": sum(one.skipped for one in moves),
                "repeated_messages": sum(one.repeated for one in moves),
                "queues": [
                    facts(
                        one,
                        "broker=queue.broker_name queue=queue.queue_id committed_offset=committed new_offset",
                    )
                    for one in moves[:QUEUES_MAX]
                ],
            }

        async def act() -> Facts:
            moved = await resets.reset_group(self.cluster, group, topic, position)
            return {"moved_queues": len(moved)}

        arguments = {"group": group, "topic": topic, "to": to, "time": at_ms}
        return await self._confirmed("reset_offsets", arguments, confirmation_token, preview, act)

    async def delete_group(
        self,
        group: GroupName,
        removes_offsets: Annotated[bool, Field(description="Delete its committed offsets, too.")] = False,
        confirmation_token: Token = "",
    ) -> Facts:
        """Deletes a consumer group at every master. Needs a confirmation."""

        async def preview() -> Facts:
            if is_system_group(group):
                raise BadRequest(f"{group} is a group of the brokers or of tools")
            masters = await groups.find_group_masters(self.cluster, group)
            addresses = [one.address for one in masters]
            state = await groups.read_state(self.cluster, addresses, group, read_now_ms())
            return {
                "deletes": group,
                "brokers": addresses,
                "members_online": len(state.members.members),
                "lag": state.lag,
                "deletes_offsets": removes_offsets,
            }

        async def act() -> Facts:
            masters = await groups.find_group_masters(self.cluster, group)
            at = await groups.delete_group(self.cluster, masters, group, removes_offsets=removes_offsets)
            return {"deleted_at": [one.address for one in at]}

        arguments = {"group": group, "removes_offsets": removes_offsets}
        return await self._confirmed("delete_group", arguments, confirmation_token, preview, act)

    async def resend_dead_letters(
        self,
        group: GroupName,
        limit: Annotated[int, Field(ge=1, le=RESENT_MAX, description="The most messages to send.")] = 100,
        confirmation_token: Token = "",
    ) -> Facts:
        """Redelivers the dead letters of a group that were not sent again yet, oldest first; only this group
        receives them. Needs a confirmation.
        """

        async def preview() -> Facts:
            count = await dead_letters.read_dead_letter_count(self.cluster, group)
            return {
                "group": group,
                "kept": count.kept,
                "not_sent_again_yet": count.left,
                "sends_at_most": limit,
            }

        async def act() -> Facts:
            sent = await dead_letters.resend_all(self.cluster, group, "", count_max=limit)
            return {"sent": sent.sent, "left": sent.left, "notes": list(sent.notes), "error": sent.error}

        arguments = {"group": group, "limit": limit}
        return await self._confirmed("resend_dead_letters", arguments, confirmation_token, preview, act)

    async def _confirmed(
        self,
        tool: str,
        arguments: Mapping[str, object],
        token: str,
        preview: Callable[[], Awaitable[Facts]],
        act: Callable[[], Awaitable[Facts]],
    ) -> Facts:
        """Returns the preview with a token, or uses up the token and makes the change."""
        if not token:
            return {
                "done": False,
                "preview": await preview(),
                "confirmation_token": self.confirmations.issue(tool, arguments),
                "expires_in_seconds": int(LIFETIME_S),
                "next": "Show this preview to the operator. Repeat the call with the same arguments and this"
                " token only if the operator agrees.",
            }
        self.confirmations.redeem(token, tool, arguments)
        log.warning(events.MCP_CHANGE_BEGUN, extra={"tool": tool, **arguments})
        try:
            result = await act()
        except BaseException as error:
            log.warning(events.MCP_CHANGE_FAILED, extra={"tool": tool, "error": str(error)})
            raise
        log.warning(events.MCP_CHANGE_DONE, extra={"tool": tool})
        return {"done": True, "result": result}
