"""Access control of the proxy: spec proxy 3.2, 3.3, 8."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest

from sim.manual_clock import ManualClock
from tandemmq.api import broker_admin
from tandemmq.broker.access.needs import SUB, Need, render_actions
from tandemmq.errors import BrokerUnreachable, ConfigError, TandemError
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.proxy import schema
from tandemmq.proxy.access import (
    ALLOWED_CHARS_MAX,
    LOOKUPS_MAX,
    RESOURCE_CHARS_MAX,
    AccessControl,
    Unauthenticated,
    is_signature,
    make_user,
    needs_of_request,
    parse_authorization,
)
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.calls import PEER
from unit.proxy.cores import make_core
from unit.proxy.known_brokers import KnownBrokers

DATE = "20261127T050000Z"
RECEIVE = {"group": {"name": "G"}, "message_queue": {"topic": {"name": "T"}}}
CONSUME = {"group": {"name": "G"}, "topic": {"name": "T"}}


def signed(access_key: str = "alice", secret_key: str = "12345678", date: str = DATE) -> dict[str, str]:
    signature = hmac.new(secret_key.encode(), date.encode(), "sha1").hexdigest().upper()
    return {
        "x-mq-date-time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={access_key}/cn/RocketMQ, SignedHeaders=x-mq-date-time,"
        f" Signature={signature}",
    }


def request(name: str, **fields: Any) -> Any:
    return message_class(name)(**fields)


def policy(*entries: tuple[str, str, str], kind: str = "Custom") -> PolicyInfo:
    return PolicyInfo(
        policy_type=kind,
        entries=tuple(
            EntryInfo(resource=resource, actions=tuple(actions.split(",")), decision=decision)
            for resource, actions, decision in entries
        ),
    )


class UserBroker:
    """A broker with users and policies, instead of connections."""

    def __init__(self) -> None:
        self.users: dict[str, UserInfo] = {"alice": UserInfo(username="alice", password="12345678")}
        self.acls: dict[str, AclInfo] = {}
        self.asked: list[str] = []
        self.is_down = False

    async def request(self, address: str, command: Command, _timeout_s: float) -> Command:
        self.asked.append(address)
        if self.is_down:
            raise BrokerUnreachable("down")
        if command.code == RequestCode.AUTH_GET_USER:
            user = self.users.get(command.fields["username"])
            if user is None:
                return command.reply(ResponseCode.USER_NOT_EXIST)
            return command.reply(body=encode_body(user))
        acl = self.acls.get(command.fields["subject"])
        return command.reply(body=encode_body(acl) if acl is not None else b"")

    @property
    def options(self) -> Any:
        return None


class MasterOf(KnownBrokers):
    ask_masters = Brokers.ask_masters

    def __init__(self, broker: UserBroker) -> None:
        super().__init__()
        self.remoting = cast(RemotingClient, broker)

    async def masters(self) -> dict[str, str]:
        self._check()
        return {"a": "10.0.0.1:10911"}


class Proxy:
    def __init__(self, **options: Any) -> None:
        self.broker = UserBroker()
        self.known = MasterOf(self.broker)
        self.clock = ManualClock()
        self.tasks = TaskScope("proxy")
        core = make_core(
            brokers=self.known.brokers,
            options=ProxyOptions(
                **{"authentication_enabled": True, "authorization_enabled": True, **options}
            ),
            clock=self.clock,
            tasks=self.tasks,
        )
        self.access = AccessControl(core, AccessLog(self.clock))

    async def check(self, metadata: Mapping[str, str], name: str = "QueryRouteRequest", **fields: Any) -> str:
        return await self.access.check(metadata, PEER, request(name, **(fields or {"topic": {"name": "T"}})))

    async def refusal(
        self, metadata: Mapping[str, str], name: str = "QueryRouteRequest", **fields: Any
    ) -> str:
        with pytest.raises(RpcRefused) as refused:
            await self.check(metadata, name, **fields)
        assert refused.value.code == Code.UNAUTHORIZED
        return str(refused.value)

    def allow(self, *entries: tuple[str, str, str], kind: str = "Custom") -> None:
        self.broker.acls["User:alice"] = AclInfo(
            subject="User:alice", policies=(policy(*entries, kind=kind),)
        )


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    yield made
    await made.tasks.close()
    assert made.tasks.failure is None


def test_each_clients_credential_names_its_access_key() -> None:
    for credential in ("AK", "AK//Rocketmq", "AK/region/RocketMQ"):
        text = f"MQv2-HMAC-SHA1 Credential={credential},SignedHeaders=x-mq-date-time,  Signature=aB"
        assert parse_authorization(text) == ("AK", "aB")
    for text in (
        "",
        "Basic abc",
        "MQv2-HMAC-SHA1",
        "MQv2-HMAC-SHA1 Credential=, Signature=x",
        "MQv2-HMAC-SHA1 Credential=/cn, Signature=x",
        "MQv2-HMAC-SHA1 Credential=a\x00b, Signature=x",
        f"MQv2-HMAC-SHA1 Credential={'a' * 256}, Signature=x",
    ):
        with pytest.raises(Unauthenticated):
            parse_authorization(text)


def test_a_signature_covers_the_exact_date_in_any_letter_case() -> None:
    signature = hmac.new(b"secret", DATE.encode(), "sha1").hexdigest()
    assert is_signature(signature, DATE, "secret")
    assert is_signature(signature.upper(), DATE, "secret")
    for other, date, key in (
        (signature, DATE + " ", "secret"),
        (signature, DATE, "other"),
        ("", DATE, "secret"),
        ("\u00e9", DATE, "secret"),
    ):
        assert not is_signature(other, date, key)


async def test_a_signed_super_user_may_do_everything(proxy: Proxy) -> None:
    proxy.broker.users["alice"] = UserInfo(username="alice", password="12345678", user_type="Super")
    assert await proxy.check(signed()) == "alice"
    assert await proxy.check(signed(date="1999-01-01T00:00:00Z")) == "alice", "no clock is compared"


async def test_a_caller_without_a_valid_signature_is_refused(proxy: Proxy) -> None:
    assert "not signed" in await proxy.refusal({})
    assert "wrong" in await proxy.refusal(signed(secret_key="guess"))
    assert "no user" in await proxy.refusal(signed("bob"))
    headers = signed()
    del headers["x-mq-date-time"]
    assert "x-mq-date-time" in await proxy.refusal(headers)
    headers = signed()
    headers["x-mq-date-time"] = "other"
    assert "wrong" in await proxy.refusal(headers)


async def test_a_disabled_user_or_one_without_a_shown_key_is_refused() -> None:
    for user, text in (
        (UserInfo(username="alice", password="12345678", status="disable"), "disabled"),
        (UserInfo(username="alice"), "super user"),
    ):
        proxy = Proxy()
        proxy.broker.users["alice"] = user
        assert text in await proxy.refusal(signed())
        await proxy.tasks.close()


async def test_white_lists_are_full_names_of_requests(proxy: Proxy) -> None:
    name = "apache.rocketmq.v2.QueryRouteRequest"
    white = Proxy(authentication_white_list=f"{name}, Other")
    assert await white.check({}) == ""
    await white.refusal({}, "HeartbeatRequest", group={"name": "G"})
    await white.tasks.close()
    white = Proxy(authorization_white_list=name)
    assert await white.check(signed()) == "alice"
    await white.refusal({})
    await white.tasks.close()


def test_authorization_needs_authentication() -> None:
    with pytest.raises(ConfigError, match="needs authenticationEnabled"):
        ProxyOptions(authorization_enabled=True)


async def test_policies_decide_and_a_denial_wins(proxy: Proxy) -> None:
    proxy.allow(("Topic:*", "Pub", "Allow"), ("Topic:T", "Pub", "Deny"))
    message = "alice may not Pub Topic:T"
    assert message in await proxy.refusal(
        signed(), "SendMessageRequest", messages=[{"topic": {"name": "U"}}, {"topic": {"name": "T"}}]
    )
    assert await proxy.check(signed(), "SendMessageRequest", messages=[{"topic": {"name": "U"}}]) == "alice"
    assert await proxy.check(signed(), "SendMessageRequest", messages=[{"topic": {"name": "U"}}]) == "alice"


async def test_names_of_any_length_are_neither_kept_nor_repeated(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.allow(("Topic:*", "Pub,Sub", "Allow"))
    assert await proxy.check(signed(), topic={"name": "t" * ALLOWED_CHARS_MAX}) == "alice"
    assert await proxy.check(signed(), topic={"name": "t" * (ALLOWED_CHARS_MAX + 1)}) == "alice"
    user = proxy.access.users.peek("alice")
    assert user is not None
    kept = [need.name for _, needs in user.allowed for need in needs]
    assert kept == ["t" * ALLOWED_CHARS_MAX]
    text = await proxy.refusal(signed(), "HeartbeatRequest", client_type=2, group={"name": "g" * 100_000})
    assert len(text) < 2 * RESOURCE_CHARS_MAX
    assert len(vars(caplog.records[-1])["reason"]) < 2 * RESOURCE_CHARS_MAX


async def test_a_request_with_more_names_than_are_served_is_refused_before_they_are_checked(
    proxy: Proxy,
) -> None:
    names = [{"name": f"T{number}"} for number in range(1_025)]
    for asked in (
        request("SendMessageRequest", messages=[{"topic": name} for name in names]),
        request("TelemetryCommand", settings={"publishing": {"topics": names}}),
        request(
            "TelemetryCommand", settings={"subscription": {"subscriptions": [{"topic": names[0]}] * 1_025}}
        ),
    ):
        with pytest.raises(RpcRefused, match="1025 topics") as refused:
            await proxy.access.check(signed(), PEER, asked)
        assert refused.value.code == Code.BAD_REQUEST


async def test_a_default_policy_counts_where_no_custom_one_does(proxy: Proxy) -> None:
    proxy.allow(("Topic:T", "Sub", "Allow"), kind="Default")
    assert await proxy.check(signed()) == "alice"


async def test_the_source_address_counts() -> None:
    for networks, is_allowed in ((("10.0.0.0/8",), False), (("127.0.0.0/8",), True)):
        proxy = Proxy()
        entry = EntryInfo(resource="Topic:T", actions=("Pub",), decision="Allow", source_ips=networks)
        proxy.broker.acls["User:alice"] = AclInfo(
            policies=(PolicyInfo(policy_type="Custom", entries=(entry,)),)
        )
        if is_allowed:
            assert await proxy.check(signed()) == "alice"
        else:
            await proxy.refusal(signed())
        await proxy.tasks.close()


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("QueryRouteRequest", {"topic": {"name": "T"}}, ["Topic:T:Pub|Sub"]),
        ("QueryAssignmentRequest", CONSUME, ["Group:G:Sub", "Topic:T:Sub"]),
        ("SendMessageRequest", {"messages": [{"topic": {"name": "T"}}] * 2}, ["Topic:T:Pub"]),
        ("RecallMessageRequest", {"topic": {"name": "T"}}, ["Topic:T:Pub"]),
        ("EndTransactionRequest", {"topic": {"name": "T"}}, ["Topic:T:Pub"]),
        ("ReceiveMessageRequest", RECEIVE, ["Group:G:Sub", "Topic:T:Sub"]),
        ("AckMessageRequest", CONSUME, ["Group:G:Sub", "Topic:T:Sub"]),
        ("ForwardMessageToDeadLetterQueueRequest", CONSUME, ["Group:G:Sub", "Topic:T:Sub"]),
        ("ChangeInvisibleDurationRequest", CONSUME, ["Group:G:Sub"]),
        ("PullMessageRequest", RECEIVE, ["Group:G:Sub", "Topic:T:Sub"]),
        ("UpdateOffsetRequest", RECEIVE, ["Group:G:Sub", "Topic:T:Sub"]),
        ("GetOffsetRequest", RECEIVE, ["Group:G:Sub", "Topic:T:Sub"]),
        ("QueryOffsetRequest", {"message_queue": {"topic": {"name": "T"}}}, ["Topic:T:Sub"]),
        ("HeartbeatRequest", {"client_type": 1}, []),
        ("HeartbeatRequest", {"client_type": 2, "group": {"name": "G"}}, ["Group:G:Sub"]),
        ("NotifyClientTerminationRequest", {"group": {"name": "G"}}, ["Group:G:Sub"]),
        ("NotifyClientTerminationRequest", {}, []),
        ("TelemetryCommand", {}, []),
        ("TelemetryCommand", {"thread_stack_trace": {"nonce": "n"}}, []),
        (
            "TelemetryCommand",
            {"settings": {"publishing": {"topics": [{"name": "T"}, {"name": "U"}]}}},
            ["Topic:T:Pub", "Topic:U:Pub"],
        ),
        (
            "TelemetryCommand",
            {
                "settings": {
                    "subscription": {"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]}
                }
            },
            ["Group:G:Sub", "Topic:T:Sub"],
        ),
        ("Settings", {}, ["Cluster::Update"]),
    ],
)
def test_each_rpc_has_its_needs(name: str, fields: dict[str, Any], expected: list[str]) -> None:
    needs = needs_of_request(request(name, **fields))
    assert [f"{need.kind}:{need.name}:{render_actions(need.actions)}" for need in needs] == expected


def test_every_request_of_the_service_has_a_row() -> None:
    names = [name for name in schema._MESSAGES if name.endswith("Request")]
    unlisted = needs_of_request(request("Settings"))
    assert [name for name in names if needs_of_request(request(name)) == unlisted] == []


def test_retry_topics_belong_to_their_group() -> None:
    needs = needs_of_request(request("QueryRouteRequest", topic={"name": "%RETRY%G"}))
    assert needs == (Need("Group", "G", SUB),)


async def test_a_user_is_fetched_once_and_again_later(proxy: Proxy) -> None:
    proxy.allow(("Topic:T", "Pub", "Allow"))
    for _ in range(5):
        await proxy.check(signed())
    assert len(proxy.broker.asked) == 2, "the user and its policies"
    proxy.broker.acls.clear()
    proxy.clock.advance(61)
    await proxy.refusal(signed())


async def test_while_no_broker_answers_only_known_users_are_served(proxy: Proxy) -> None:
    proxy.allow(("Topic:T", "Pub", "Allow"))
    await proxy.check(signed())
    proxy.broker.is_down = True
    proxy.clock.advance(30)
    assert await proxy.check(signed()) == "alice"
    assert "cannot be fetched" in await proxy.refusal(signed("bob"))
    proxy.clock.advance(60)
    assert "cannot be fetched" in await proxy.refusal(signed())


async def test_an_unreadable_policy_refuses_its_user(proxy: Proxy) -> None:
    proxy.allow(("Topic:T", "Pub", "Allow"), ("Topic:T", "Fly", "Deny"))
    assert "cannot be fetched" in await proxy.refusal(signed())
    with pytest.raises(ConfigError):
        make_user(UserInfo(password="x"), AclInfo(policies=(policy(("Nothing", "Pub", "Deny")),)))


async def test_names_that_nobody_has_are_not_looked_up_without_bound(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def outcome(access_key: str) -> str:
        try:
            return await proxy.check(signed(access_key))
        except TandemError as error:
            return str(error)

    async def slow(*_args: Any) -> None:
        await proxy.clock.sleep(1)

    monkeypatch.setattr(broker_admin.query_user, "within", slow)
    tasks = [proxy.tasks.start("check", outcome(f"guess{n}")) for n in range(LOOKUPS_MAX + 5)]
    await proxy.clock.pass_time(2)
    answers = [task.result() for task in tasks]
    assert sum("are being fetched" in answer for answer in answers) == 5


async def test_the_audit_log_names_the_access_key(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tandemmq.audit"):
        await proxy.refusal(signed(secret_key="guess"))
        await proxy.refusal(signed(), "SendMessageRequest", messages=[{"topic": {"name": "T"}}])
    facts = [vars(record) for record in caplog.records if record.name == "tandemmq.audit"]
    assert [one["who"] for one in facts] == ["alice", "alice"]
    assert facts[1]["resource"] == "Topic:T"
    assert "SendMessageRequest" in facts[1]["reason"]
    assert "guess" not in caplog.text
