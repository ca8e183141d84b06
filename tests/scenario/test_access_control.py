"""Brokers with access control: signed requests, both kinds of rules, their files and their requests."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from broker_rig import TIMEOUT_S, consumer, pull_header, send_header

from tandemmq.broker.broker import Broker
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.client import Heartbeat
from tandemmq.protocol.bodies.codec import (
    DENIALS_KEY,
    NEWEST_DENIAL_KEY,
    NEWEST_REFUSAL_KEY,
    REFUSALS_KEY,
    SEND_REFUSALS_KEY,
    decode_kv_table,
    encode_body,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.requests.admin import (
    AccessVersionResponse,
    AclRequest,
    ConsumeDirectlyRequest,
    CreateTopicRequest,
    DeleteAccountRequest,
    DeleteAclRequest,
    ListAclsRequest,
    ListUsersRequest,
    ResumeCheckRequest,
    TopicConfigRequest,
    UpdateAccountRequest,
    UpdateWhiteAddressesRequest,
    UserRequest,
)
from tandemmq.protocol.requests.consume import QueryMessageRequest, ViewMessageRequest
from tandemmq.protocol.requests.replica import LogChecksumRequest
from tandemmq.protocol.requests.send import EndTransactionRequest, SendBackRequest, SendResponse
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SeededRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from tandemmq.store import StoreOptions
from waits import until

APP = Credentials("app-user", "app-secret")
SPY = Credentials("spy-user", "spy-secret")
ADMIN = Credentials("admin-user", "admin-secret")
RULES = {
    "globalWhiteRemoteAddresses": [],
    "accounts": [
        {
            "accessKey": "app-user",
            "secretKey": "app-secret",
            "defaultTopicPerm": "DENY",
            "topicPerms": ["Orders=PUB|SUB", "Logs=SUB"],
            "groupPerms": ["CG=SUB"],
        },
        {"accessKey": "admin-user", "secretKey": "admin-secret", "admin": True},
    ],
}
SPY_ACCOUNT = {
    "accessKey": "spy-user",
    "secretKey": "spy-secret",
    "defaultTopicPerm": "DENY",
    "topicPerms": ["Own=PUB|SUB"],
    "groupPerms": ["C=SUB"],
}


@asynccontextmanager
async def guarded(root: Path, access: AccessOptions) -> AsyncIterator[Broker]:
    broker = Broker(
        BrokerOptions(listen_host="127.0.0.1", listen_port=0),
        StoreOptions(root=root / "store", commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20_000),
        machine=Machine(TcpNetwork(), RealDisk(), LoopClock(), SeededRandom(7)),
        access=access,
    )
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


def write_rules(root: Path, rules: object) -> AccessOptions:
    (root / "conf").mkdir(exist_ok=True)
    (root / "conf" / "plain_acl.yml").write_text(yaml.safe_dump(rules))
    return AccessOptions(acl_enable=True, acl_directory=root / "conf")


class Caller:
    """One connection that signs with its credentials, or not at all."""

    def __init__(self, broker: Broker, credentials: Credentials | None) -> None:
        signer = None if credentials is None else credentials.sign
        self._client = RemotingClient(network=TcpNetwork(), clock=LoopClock(), signer=signer)
        self._address = render_address(broker.address)

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def ask(
        self, code: int, header: Header | None = None, *, body: bytes = b"", serialize_type: int = 0
    ) -> Command:
        command = Command.request(code, header, body=body, serialize_type=serialize_type)
        return await self._client.request(self._address, command, TIMEOUT_S)

    async def send(self, topic: str, serialize_type: int = 0) -> int:
        header = send_header(topic)
        answer = await self.ask(310, header, body=b"hello", serialize_type=serialize_type)
        return answer.code

    async def create_topic(self, topic: str) -> int:
        header = CreateTopicRequest(
            topic=topic,
            default_topic="TBW102",
            read_queue_count=1,
            write_queue_count=1,
            permission=6,
        )
        return (await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code


async def test_the_runtime_info_tells_who_was_refused(tmp_path: Path) -> None:
    options = write_rules(tmp_path, RULES)
    async with guarded(tmp_path, options) as broker, Caller(broker, ADMIN) as admin:
        assert await admin.create_topic("Orders") == ResponseCode.SUCCESS

        async def told() -> dict[str, str]:
            return decode_kv_table((await admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)

        before = await told()
        assert (before[DENIALS_KEY], before[REFUSALS_KEY], before[SEND_REFUSALS_KEY]) == ("0", "0", "")
        async with Caller(broker, SPY) as spy:
            assert await spy.send("Orders") == ResponseCode.NO_PERMISSION
        assert await admin.send("a topic") == ResponseCode.INVALID_PARAMETER
        await admin.ask(RequestCode.PULL_MESSAGE, pull_header("Nowhere"))
        after = await told()
        assert after[DENIALS_KEY] == "1"
        assert after[NEWEST_DENIAL_KEY].startswith("spy-user from 127.0.0.1:")
        assert after[NEWEST_DENIAL_KEY].endswith("there is no account with access key spy-user")
        assert after[SEND_REFUSALS_KEY] == "INVALID_PARAMETER 1"
        assert after[REFUSALS_KEY] == "1"
        assert after[NEWEST_REFUSAL_KEY].startswith("PULL_MESSAGE of group ")
        assert "the topic 'Nowhere' does not exist" in after[NEWEST_REFUSAL_KEY]


async def test_accounts_send_pull_and_administer_as_their_rules_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tandemmq.audit")
    options = write_rules(tmp_path, RULES)
    async with guarded(tmp_path, options) as broker, Caller(broker, ADMIN) as admin:
        assert await admin.create_topic("Orders") == ResponseCode.SUCCESS
        async with Caller(broker, APP) as app:
            for serialize_type in (0, 1):
                assert await app.send("Orders", serialize_type) == ResponseCode.SUCCESS
            assert await app.send("Logs") == ResponseCode.NO_PERMISSION
            assert await app.create_topic("Own") == ResponseCode.NO_PERMISSION
            heartbeat = encode_body(
                Heartbeat(client_id="c", consumers=(consumer("CG", "Orders"),), producers=())
            )
            assert (await app.ask(RequestCode.HEART_BEAT, body=heartbeat)).code == ResponseCode.SUCCESS
            pulled = await app.ask(RequestCode.PULL_MESSAGE, pull_header("Orders"))
            assert pulled.code == ResponseCode.SUCCESS
            refused = await app.ask(RequestCode.PULL_MESSAGE, pull_header("Orders", consumer_group="Other"))
            assert refused.code == ResponseCode.NO_PERMISSION
            assert refused.remark == "app-user may not Sub Group:Other"
        for wrong in (None, Credentials("app-user", "app-secreT"), Credentials("nobody-", "app-secret")):
            async with Caller(broker, wrong) as stranger:
                assert await stranger.send("Orders") == ResponseCode.NO_PERMISSION
    lines = [record for record in caplog.records if record.name == "tandemmq.audit"]
    denied = [record for record in lines if record.msg == "access.denied"]
    assert [record.resource for record in denied] == [  # type: ignore[attr-defined]  # extra
        "Topic:Logs",
        "Topic:Own",
        "Group:Other",
        "",
        "",
        "",
    ]
    assert any(record.msg == "admin_request.allowed" for record in lines)
    assert "secret" not in caplog.text


async def test_administrative_request_is_logged_with_its_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tandemmq.audit")
    options = write_rules(tmp_path, RULES)
    async with guarded(tmp_path, options) as broker, Caller(broker, ADMIN) as admin:
        assert await admin.create_topic("no such name!") != ResponseCode.SUCCESS
        assert await admin.create_topic("Orders") == ResponseCode.SUCCESS
    refused, allowed = (record for record in caplog.records if record.name == "tandemmq.audit")
    assert (refused.msg, refused.resource) == ("admin_request.refused", "Topic:no such name!")  # type: ignore[attr-defined]  # extra
    assert "no such name!" in refused.reason  # type: ignore[attr-defined]  # extra
    assert (allowed.msg, allowed.resource) == ("admin_request.allowed", "Topic:Orders")  # type: ignore[attr-defined]  # extra


async def test_a_message_is_judged_by_what_is_stored_not_by_what_is_claimed(tmp_path: Path) -> None:
    options = write_rules(tmp_path, {"accounts": [*RULES["accounts"], SPY_ACCOUNT]})
    async with (
        guarded(tmp_path, options) as broker,
        Caller(broker, ADMIN) as admin,
        Caller(broker, APP) as app,
        Caller(broker, SPY) as spy,
    ):
        await admin.create_topic("Orders")
        await admin.create_topic("Own")
        heartbeat = encode_body(Heartbeat(client_id="s", consumers=(consumer("C", "Own"),), producers=()))
        assert (await spy.ask(RequestCode.HEART_BEAT, body=heartbeat)).code == ResponseCode.SUCCESS
        sent = await app.ask(RequestCode.SEND_MESSAGE_V2, send_header("Orders"), body=b"a secret")
        at = decode_message_id(sent.decode(SendResponse).message_id).log_offset
        tagged = {"TRAN_MSG": "true", "PGROUP": "PG"}
        begun = await app.ask(
            RequestCode.SEND_MESSAGE_V2, send_header("Orders", tagged, sys_flag=4), body=b"another"
        )
        half = begun.decode(SendResponse)
        half_at = decode_message_id(half.message_id).log_offset
        for place in (at, half_at):
            view = ViewMessageRequest(log_offset=place)
            assert (await spy.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == ResponseCode.NO_PERMISSION
            assert (await app.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == ResponseCode.SUCCESS
        back = SendBackRequest(log_offset=at, group="C", delay_level=0, original_topic="Own")
        refused = await spy.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert (refused.code, refused.remark) == (16, "spy-user may not Sub Topic:Orders")
        for claimed in ("Own", None):
            end = EndTransactionRequest(
                producer_group="PG",
                half_queue_offset=half.queue_offset,
                log_offset=half_at,
                decision=8,
                unique_key="",
                topic=claimed,
            )
            refused = await spy.ask(RequestCode.END_TRANSACTION, end)
            assert (refused.code, refused.remark) == (16, "spy-user may not Pub Topic:Orders")
        assert (await app.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SUCCESS


async def test_nobody_reads_by_id_or_key_what_he_may_not_read(tmp_path: Path) -> None:
    options = write_rules(tmp_path, {"accounts": [*RULES["accounts"], SPY_ACCOUNT]})
    async with (
        guarded(tmp_path, options) as broker,
        Caller(broker, ADMIN) as admin,
        Caller(broker, APP) as app,
        Caller(broker, SPY) as spy,
    ):
        await admin.create_topic("Orders")
        await admin.create_topic("Own")
        heartbeat = encode_body(Heartbeat(client_id="s", consumers=(consumer("C", "Own"),), producers=()))
        assert (await spy.ask(RequestCode.HEART_BEAT, body=heartbeat)).code == ResponseCode.SUCCESS
        keyed = send_header("Orders", {"KEYS": "1001"})
        sent = await app.ask(RequestCode.SEND_MESSAGE_V2, keyed, body=b"a secret")
        message_id = sent.decode(SendResponse).message_id
        relay = ConsumeDirectlyRequest(consumer_group="C", client_id="s", message_id=message_id)
        refused = await spy.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, relay)
        assert (refused.code, refused.remark) == (16, "spy-user may not Sub Topic:Orders")
        tagged = {"TRAN_MSG": "true", "PGROUP": "PG"}
        half = await app.ask(
            RequestCode.SEND_MESSAGE_V2, send_header("Orders", tagged, sys_flag=4), body=b"another"
        )
        resume = ResumeCheckRequest(message_id=half.decode(SendResponse).message_id, topic="Own")
        refused = await spy.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert (await admin.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)).code == ResponseCode.SUCCESS
        for topic, asker in (("Orders", app), ("Own", spy)):
            key = key_like(topic, java_hash("Orders#1001"))
            query = QueryMessageRequest(topic=topic, key=key, count_max=8, begin_at_ms=0, end_at_ms=2**63 - 1)
            answer = await asker.ask(RequestCode.QUERY_MESSAGE, query)
            is_found = answer.code == ResponseCode.SUCCESS
            assert is_found == (asker is app), "clients sort out wrong keys, the broker wrong topics"


def key_like(topic: str, wanted: int) -> str:
    """Returns a key of the topic whose hash in the index is `wanted`: digits of base 31."""
    rest = wanted - java_hash(f"{topic}#{'!' * 7}") & 0xFFFFFFFF
    key = "".join(chr(ord("!") + rest // 31**power % 31) for power in reversed(range(7)))
    assert java_hash(f"{topic}#{key}") == wanted
    return key


async def test_broker_wide_requests_need_an_administrator(tmp_path: Path) -> None:
    options = write_rules(tmp_path, RULES)
    async with (
        guarded(tmp_path, options) as broker,
        Caller(broker, ADMIN) as admin,
        Caller(broker, APP) as app,
    ):
        for code in (
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_BROKER_CONFIG,
        ):
            assert (await app.ask(code)).code == ResponseCode.NO_PERMISSION
            assert (await admin.ask(code)).code == ResponseCode.SUCCESS
        one_byte = LogChecksumRequest(log_offset=0, size_bytes=1)
        refused = await app.ask(RequestCode.TANDEM_READ_LOG_CHECKSUM, one_byte)
        assert refused.code == ResponseCode.NO_PERMISSION


async def test_changed_files_are_taken_over_and_broken_ones_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = write_rules(tmp_path, {})
    async with guarded(tmp_path, options) as broker, Caller(broker, ADMIN) as admin:
        assert await admin.create_topic("Orders") == ResponseCode.NO_PERMISSION
        write_rules(tmp_path, RULES)
        await until(lambda: len(broker._access.check.__self__.rules.accounts) == 2)  # type: ignore[union-attr]
        assert await admin.create_topic("Orders") == ResponseCode.SUCCESS
        (tmp_path / "conf" / "plain_acl.yml").write_text("accounts: [")
        await until(lambda: "access_rules.refused" in caplog.text)
        assert await admin.create_topic("Orders") == ResponseCode.SUCCESS
        folder = tmp_path / "conf" / "acl" / "team"
        folder.mkdir(parents=True)
        write_rules(tmp_path, {"accounts": RULES["accounts"][1:]})  # type: ignore[index]  # a list
        (folder / "more.yml").write_text(yaml.safe_dump({"accounts": RULES["accounts"][:1]}))  # type: ignore[index]
        async with Caller(broker, APP) as app:

            def has_both() -> bool:
                return len(broker._access.check.__self__.rules.accounts) == 2  # type: ignore[union-attr]

            await until(has_both)
            assert await app.send("Orders") == ResponseCode.SUCCESS


async def test_a_broker_does_not_start_with_rules_that_it_cannot_read(tmp_path: Path) -> None:
    options = AccessOptions(acl_enable=True, acl_directory=tmp_path / "conf")
    with pytest.raises(ConfigError, match="there is no"):
        async with guarded(tmp_path, options):
            pass
    write_rules(tmp_path, {"accounts": [{"accessKey": "x"}]})
    with pytest.raises(ConfigError, match=r"plain_acl\.yml: an account: accessKey"):
        async with guarded(tmp_path, options):
            pass


async def test_tools_of_4_9_change_the_files(tmp_path: Path) -> None:
    options = write_rules(tmp_path, RULES)
    new = Credentials("new-user", "new-secret")
    async with guarded(tmp_path, options) as broker, Caller(broker, ADMIN) as admin:
        update = UpdateAccountRequest(
            access_key="new-user", secret_key="new-secret", topic_permissions="Orders=PUB,Logs=DENY"
        )
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        async with Caller(broker, new) as app:
            assert await app.send("Orders") == ResponseCode.NO_PERMISSION
            assert (await app.ask(code, update)).code == ResponseCode.NO_PERMISSION
            assert (await admin.ask(code, update)).code == ResponseCode.SUCCESS
            await admin.create_topic("Orders")
            assert await app.send("Orders") == ResponseCode.SUCCESS
            assert await app.send("Logs") == ResponseCode.NO_PERMISSION
            bad = UpdateAccountRequest(access_key="new", secret_key="x")
            assert (await admin.ask(code, bad)).code == 209
            stored = yaml.safe_load((tmp_path / "conf" / "plain_acl.yml").read_text())
            assert stored["accounts"][-1]["topicPerms"] == ["Orders=PUB", "Logs=DENY"]
            version = (await admin.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)).decode(AccessVersionResponse)
            assert json.loads(version.version)["counter"] == 1
            assert next(iter(json.loads(version.versions_by_file).values()))["counter"] == 1
            shown = await admin.ask(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
            assert [a["accessKey"] for a in json.loads(bytes(shown.body))["plainAccessConfigs"]] == [
                "app-user",
                "admin-user",
                "new-user",
            ]
            delete = DeleteAccountRequest(access_key="new-user")
            assert (await admin.ask(RequestCode.DELETE_ACL_CONFIG, delete)).code == ResponseCode.SUCCESS
            assert (await admin.ask(RequestCode.DELETE_ACL_CONFIG, delete)).code == 210
            assert await app.send("Orders") == ResponseCode.NO_PERMISSION
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        outside = UpdateWhiteAddressesRequest(addresses="*", file=str(tmp_path / "other.yml"))
        assert (await admin.ask(code, outside)).code == 211
        white = UpdateWhiteAddressesRequest(addresses="127.0.0.1")
        assert (await admin.ask(code, white)).code == ResponseCode.SUCCESS
        async with Caller(broker, None) as anybody:
            assert await anybody.send("Orders") == ResponseCode.SUCCESS


AUTH = AccessOptions(
    authentication_enabled=True,
    authorization_enabled=True,
    first_user=Credentials("root", "root-password"),
    inner_credentials=Credentials("inner", "inner-password"),
)


def acl_body(*entries: tuple[str, str, str]) -> bytes:
    listed = [
        {"resource": resource, "actions": actions.split(","), "decision": decision, "sourceIps": []}
        for resource, actions, decision in entries
    ]
    return json.dumps({"policies": [{"policyType": "Custom", "entries": listed}]}).encode()


async def test_users_and_policies_survive_a_restart(tmp_path: Path) -> None:
    async with guarded(tmp_path, AUTH) as broker, Caller(broker, AUTH.first_user) as root:
        user = json.dumps({"username": "app-user", "password": "app-secret", "userType": "Normal"}).encode()
        create = UserRequest(username="app-user")
        assert (await root.ask(3001, create, body=user)).code == ResponseCode.SUCCESS
        assert (await root.ask(3001, create, body=user)).code == ResponseCode.INVALID_PARAMETER
        await root.create_topic("Orders")
        async with Caller(broker, APP) as app:
            assert await app.send("Orders") == ResponseCode.NO_PERMISSION
            body = acl_body(("Topic:Orders", "Pub,Sub", "Allow"), ("Group:C*", "Sub", "Allow"))
            assert (await app.ask(3006, AclRequest(subject="User:app-user"), body=body)).code == 16
            done = await root.ask(3006, AclRequest(subject="User:app-user"), body=body)
            assert done.code == ResponseCode.SUCCESS, done.remark
            assert await app.send("Orders") == ResponseCode.SUCCESS
            pulled = await app.ask(RequestCode.PULL_MESSAGE, pull_header("Orders"))
            assert pulled.code == ResponseCode.SUCCESS
        unknown = await root.ask(3006, AclRequest(subject="User:none"), body=body)
        assert unknown.code == ResponseCode.USER_NOT_EXIST
    async with guarded(tmp_path, AUTH) as broker, Caller(broker, AUTH.first_user) as root:
        app = Caller(broker, APP)
        async with app:
            assert await app.send("Orders") == ResponseCode.SUCCESS
            listed = await root.ask(3005, ListUsersRequest())
            names = [user["username"] for user in json.loads(bytes(listed.body))]
            assert names == ["app-user", "root"]
            shown = await root.ask(3009, AclRequest(subject="User:app-user"))
            entries = json.loads(bytes(shown.body))["policies"][0]["entries"]
            assert [entry["resource"] for entry in entries] == ["Topic:Orders", "Group:C*"]
            deny = acl_body(("Topic:Orders", "Pub", "Deny"))
            await root.ask(3007, AclRequest(subject="User:app-user"), body=deny)
            assert await app.send("Orders") == ResponseCode.NO_PERMISSION
            await root.ask(3008, DeleteAclRequest(subject="User:app-user", resource="Topic:Orders"))
            found = await root.ask(3010, ListAclsRequest(subject_part="app"))
            assert len(json.loads(bytes(found.body))[0]["policies"][0]["entries"]) == 1
            disable = json.dumps({"userStatus": "disable"}).encode()
            await root.ask(3002, UserRequest(username="app-user"), body=disable)
            config = await app.ask(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest(topic="Orders"))
            assert "disabled" in (config.remark or "")
            await root.ask(3003, UserRequest(username="app-user"))
            gone = await root.ask(3004, UserRequest(username="app-user"))
            assert bytes(gone.body) == b""


async def test_passwords_are_for_super_users_and_their_owners(tmp_path: Path) -> None:
    async def passwords(caller: Caller) -> list[str | None]:
        listed = await caller.ask(3005, ListUsersRequest())
        shown = [await caller.ask(3004, UserRequest(username=name)) for name in ("app-user", "root")]
        users = json.loads(bytes(listed.body))
        assert [json.loads(bytes(one.body)) for one in shown] == users
        return [user.get("password") for user in users]

    access = replace(AUTH, authorization_enabled=False)
    assert access.first_user is not None
    async with guarded(tmp_path, access) as broker, Caller(broker, access.first_user) as root:
        body = json.dumps({"password": APP.secret_key, "userType": "Normal"}).encode()
        await root.ask(3001, UserRequest(username="app-user"), body=body)
        assert await passwords(root) == [APP.secret_key, access.first_user.secret_key]
        async with Caller(broker, APP) as app:
            assert await passwords(app) == [APP.secret_key, None]
    white = replace(access, authentication_white_codes=frozenset({3004, 3005}))
    for nobody_asks in (AccessOptions(), white):  # so the name is a claim that no signature proves
        async with guarded(tmp_path, nobody_asks) as broker, Caller(broker, access.first_user) as anybody:
            assert await passwords(anybody) == [None, None]


async def test_users_cannot_be_made_while_nobody_is_asked_who_he_is(tmp_path: Path) -> None:
    async with guarded(tmp_path, AccessOptions()) as broker, Caller(broker, None) as anybody:
        body = b'{"password":"x","userType":"Super"}'
        assert (await anybody.ask(3001, UserRequest(username="x"), body=body)).code == 16
        update = UpdateAccountRequest(access_key="new-user", secret_key="new-secret")
        assert (await anybody.ask(50, update)).code == 209
