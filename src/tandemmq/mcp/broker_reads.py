"""The tools that read brokers: replication, settings, access and rejected requests. A method's docstring is
what an assistant reads about the tool.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from tandemmq.errors import BadRequest
from tandemmq.manage import access
from tandemmq.manage.brokers import GroupReplication, read_broker, read_replication
from tandemmq.manage.cluster import BrokerReading, ClusterReading, read_cluster
from tandemmq.manage.reach import answers_of, ask_each
from tandemmq.manage.refusals import read_refusals
from tandemmq.manage.settings import SettingRow, describe_settings, is_tandem, read_settings_of
from tandemmq.manage.tools import Tools
from tandemmq.mcp.answers import (
    UNTRUSTED,
    Facts,
    Limit,
    Search,
    cut,
    facts,
    matching,
    name_failures,
    name_silent,
    read_now_ms,
    rows_of,
    text,
)
from tandemmq.protocol.codes import response_name

Address = Annotated[str, text("Address of the broker, from cluster_overview.")]


# The columns of the answers.
_PRODUCER: Final = "client_id address language seen_at=updated_at_ms"
_SETTING: Final = "setting=key value default differs=is_changed can_change_to=allowed"
_POLICY: Final = (
    "subject type=policy_type resource=entry.resource decision=entry.decision actions=entry.actions"
    " from_addresses=entry.source_ips brokers"
)
_ACCOUNT: Final = (
    "account=access_key is_admin default_topic_permission default_group_permission topic_permissions"
    " group_permissions from_addresses=white_remote_address"
)
"""The columns of an account, without its secret key."""
_REFUSAL: Final = "group client request count reason newest_at=last_at_ms"
_MEMBER: Final = (
    "id=target.broker_id address=target.address role state in_sync lag_bytes lag_seconds=lag_s log_end"
    " problem"
)
_SLAVE: Final = "state in_sync=is_in_sync lag_bytes lag_ms acknowledged_offset away_ms"


@dataclass(frozen=True, slots=True)
class BrokerReads:
    """The reads of brokers, with the rights of the credentials that their requests are signed with."""

    cluster: Tools

    async def list_replication(self, search: Search = "", limit: Limit = 50) -> Facts:
        """Lists groups of brokers with the role, in-sync state and lag of each broker, the term of an elected
        group, problems, and the controllers with their leader.
        """
        reading = await self._read()
        found = await read_replication(self.cluster, reading)
        wanted = [one for one in found.groups if search.lower() in one.name.lower()]
        controllers = found.controllers
        return {
            **cut("groups", [_group(one) for one in wanted], limit),
            "controllers": {
                "addresses": list(controllers.addresses),
                "leader": controllers.leader,
                "errors": list(controllers.errors),
                "groups_unknown_to_them": controllers.states.unknown or {},
            },
            "incomplete": name_silent(reading.brokers),
        }

    async def describe_broker(self, broker: Address, search: Search = "", limit: Limit = 100) -> Facts:
        """Shows one broker: its replication, the newest terms of its log, its producers, and the facts that
        it reports about itself. `search` selects producers and facts.
        """
        [one] = _choose(await self._read(), broker)
        details = await read_broker(self.cluster, one)
        status = details.replication
        terms = [{"term": term.epoch, "begin": term.start, "end": term.end} for term in details.terms]
        producers = [{"group": group, **facts(client, _PRODUCER)} for group, client in details.producers]
        reported = [{"name": name, "value": value} for name, value in sorted(one.facts.items())]
        return {
            "broker": one.target.broker_name,
            "address": one.address,
            "role": one.role if status is None else "master" if status.is_master else "slave",
            "version": one.version,
            "copies_from": None if status is None else status.client.master_address,
            "copy_state": None if status is None else status.client.state,
            "slaves_in_sync": None if status is None else status.in_sync_count,
            **cut("terms", terms, limit),
            "producer_count": details.producer_count,
            "incomplete": list(details.errors),
            "note": UNTRUSTED,
            "untrusted": {
                **cut("producers", matching(producers, search), limit),
                **cut("facts", matching(reported, search), limit),
            },
        }

    async def list_settings(
        self,
        broker: Annotated[
            str, text("Only the broker with this address; empty for all.", is_optional=True)
        ] = "",
        search: Search = "",
        limit: Limit = 100,
    ) -> Facts:
        """Lists broker settings that differ from the default or have an unknown one, and with `search` all
        those whose name contains it. Equal values are one entry with its brokers; secrets are hidden.
        """
        chosen = _choose(await self._read(), broker)
        answering = [one for one in chosen if not one.error or one.is_denied]
        found = await ask_each(answering, lambda one: read_settings_of(self.cluster, one.address))
        holders: dict[SettingRow, list[str]] = {}
        for one, settings in answers_of(found):
            for row in describe_settings(settings, is_tandem=is_tandem(one.facts)):
                if search.lower() in row.key.lower() if search else row.is_changed or row.default is None:
                    holders.setdefault(row, []).append(one.address)
        rows = [
            {**facts(row, _SETTING), "brokers": addresses}
            for row, addresses in sorted(
                holders.items(), key=lambda item: (not item[0].is_changed, item[0].key, item[0].value)
            )
        ]
        failures = [f"{one.target.target}: {one.error}" for one in found if one.error]
        return {**cut("settings", rows, limit), "incomplete": [*name_silent(chosen), *failures]}

    async def list_access(self, search: Search = "", limit: Limit = 100) -> Facts:
        """Lists users, policies and accounts of access control with the brokers that have them, and which
        brokers check rights. Passwords and secret keys are never shown.
        """
        reading, found = await self._access()
        users = rows_of(access.rows_of_users(found), "user=name type=user_type status brokers")
        policies = rows_of(access.rows_of_policies(found), _POLICY)
        accounts = [
            {**facts(one, _ACCOUNT), "brokers": brokers} for one, brokers in access.rows_of_accounts(found)
        ]
        checks = [
            {"broker": str(target), "checks_rights": one.is_on, "settings": dict(one.modes)}
            for target, one in found.brokers.items()
        ]
        return {
            **cut("brokers", checks, limit),
            **cut("users", matching(users, search), limit),
            **cut("policies", matching(policies, search), limit),
            **cut("accounts", matching(accounts, search), limit),
            "incomplete": [*name_silent(reading.brokers), *access.problems_of(found)],
        }

    async def check_access(
        self,
        kind: Annotated[Literal["topic", "group"], Field(description="The kind of the resource.")],
        name: Annotated[str, text("The topic or group.")],
        host: Annotated[
            str, text("The address of the client, if policies depend on it.", 100, is_optional=True)
        ] = "",
        search: Search = "",
        limit: Limit = 100,
    ) -> Facts:
        """Shows who may read, write, change or delete a topic or group at each broker, and why. Brokers with
        `checks_rights` false allow every request. `search` selects users.
        """
        reading, found = await self._access()
        rows = [
            {
                "broker": str(one.target),
                "checks_rights": found.brokers[one.target].is_on,
                one.kind: one.name,
                "may": [right for right, is_allowed in one.rights.items() if is_allowed],
                "reason": one.reason,
            }
            for one in access.judge(found, kind.capitalize(), name, host)
            if search.lower() in one.name.lower()
        ]
        open_to_all = [str(target) for target, one in found.brokers.items() if not one.is_on]
        return {
            "brokers_that_check_nothing": open_to_all[:limit],
            **cut("rights", rows, limit),
            "incomplete": [*name_silent(reading.brokers), *access.problems_of(found)],
        }

    async def list_rejected_requests(self, search: Search = "", limit: Limit = 50) -> Facts:
        """Lists requests that brokers have rejected since they started: counts of each broker, and those of
        consumers with the reason, the newest first. RocketMQ's brokers do not report them.
        """
        reading = await self._read()
        found = await read_refusals(self.cluster, reading)
        brokers = [
            {"broker": str(target), **({"reported": False} if held is None else asdict(held))}
            for target, held in found.counts
        ]
        rows = [
            {"broker": str(target), "code": response_name(one.code), **facts(one, _REFUSAL)}
            for target, one in found.rows
        ]
        denied = [f"{one.target}: {one.error}" for one in reading.brokers if one.is_denied]
        return {
            "incomplete": [*name_silent(reading.brokers), *denied, *name_failures(found.failed)],
            "note": UNTRUSTED,
            "untrusted": {**cut("brokers", brokers, limit), **cut("requests", matching(rows, search), limit)},
        }

    async def _read(self) -> ClusterReading:
        return await read_cluster(self.cluster, read_now_ms())

    async def _access(self) -> tuple[ClusterReading, access.ClusterAccess]:
        reading = await self._read()
        targets = [one.target for one in reading.answering]
        return reading, await access.read_access(self.cluster, targets)


def _choose(reading: ClusterReading, address: str) -> list[BrokerReading]:
    """Returns the broker with this address; all for an empty one."""
    found = [one for one in reading.brokers if address in ("", one.address)]
    if address and not found:
        raise BadRequest(f"no broker is registered at {address!r}")
    return found[:1] if address else found


def _group(group: GroupReplication) -> Facts:
    sync = group.sync
    return {
        **facts(group, "group=name cluster problems"),
        "elected": None
        if sync is None
        else {
            **facts(sync, "term=master_epoch master=master_address in_sync_set_epoch=set_epoch"),
            "in_sync": [one.address for one in sync.in_sync],
            "not_in_sync": [one.address for one in sync.not_in_sync],
        },
        "brokers": rows_of(group.members, _MEMBER),
        "slaves_seen_by_master": [
            {"slave": one.slave or one.address, **facts(one, _SLAVE), "reason": one.reason or one.halt_reason}
            for one in group.connections
        ],
    }
