"""A user's permission from one address does not apply to another, even if it was checked before."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.memory import ManualClock
from tandemmq.broker.access.auth_table import AuthTable
from tandemmq.broker.access.guard import Guard
from tandemmq.broker.access.needs import PUB, TOPIC, Need
from tandemmq.broker.clients.consumer_table import Member, ProducerTable
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.broker.transaction.checks import Asker
from tandemmq.broker.transaction.half import make_copy, make_half
from tandemmq.errors import NotPermitted
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, decode_record, encode_record
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.channel import Channel
from tandemmq.store.outcomes import Appended

APP = Credentials("app", "secret-of-app")
SPY = Credentials("spy", "secret-of-spy")


def connection(host: str) -> Channel:
    """Returns a connection with the attributes that are used."""
    subject = _Connection()
    subject.peer = (host, 5)
    return cast(Channel, subject)


class _Connection:
    peer = ("", 0)
    is_closed = False

    def __init__(self) -> None:
        self.on_close: list[Callable[[Channel], None]] = []

    def make_known(self) -> None:
        pass


def test_an_allowance_for_one_address_is_not_remembered_for_others() -> None:
    users = AuthTable()
    users.create_user(UserInfo(password=APP.secret_key), APP.access_key)
    entry = EntryInfo(actions=("Pub",), decision="ALLOW", resource="Topic:T", source_ips=("10.0.0.1",))
    users.create_acl(AclInfo(policies=(PolicyInfo(entries=(entry,)),)), f"User:{APP.access_key}")
    guard = Guard(
        AccessOptions(authentication_enabled=True, authorization_enabled=True),
        cluster="C",
        users=users,
        audit=AccessLog(ManualClock()),
        inner=None,
    )
    command = Command(code=RequestCode.SEND_MESSAGE, opaque=1, extra_fields={"topic": "T"})
    APP.sign(command)
    for _ in range(2):
        guard.check(connection("10.0.0.1"), command)
        with pytest.raises(NotPermitted, match="app may not Pub Topic:T"):
            guard.check(connection("10.0.0.2"), command)


def test_client_permissions_are_learned_from_heartbeats_and_follow_rule_changes() -> None:
    users = AuthTable()
    need = Need(TOPIC, "T", PUB)
    for credentials in (APP, SPY):
        users.create_user(UserInfo(password=credentials.secret_key), credentials.access_key)
    entry = EntryInfo(actions=("Pub",), decision="ALLOW", resource="Topic:T", source_ips=("10.0.0.1",))
    acl = AclInfo(policies=(PolicyInfo(entries=(entry,)),))
    users.create_acl(acl, f"User:{APP.access_key}")
    guard = Guard(
        AccessOptions(authentication_enabled=True, authorization_enabled=True),
        cluster="C",
        users=users,
        audit=AccessLog(ManualClock()),
        inner=None,
    )
    near, far, spy, silent = map(connection, ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.1"))
    for channel, credentials in ((near, APP), (far, APP), (spy, SPY)):
        beat = Command(code=RequestCode.HEART_BEAT, opaque=1, extra_fields={}, body=b'{"clientID":"c"}')
        credentials.sign(beat)
        guard.check(channel, beat)
    assert [guard.may(channel, need) for channel in (near, far, spy, silent)] == [True, False, False, False]
    users.create_acl(acl, f"User:{SPY.access_key}")
    assert guard.may(spy, need)
    users.delete_user(SPY.access_key)
    assert not guard.may(spy, need)
    for callback in near.on_close:
        callback(near)
    assert not guard.may(near, need)


def test_transaction_checks_go_only_to_clients_that_may_publish() -> None:
    """The check contains the message, and membership of a producer group is not verified."""
    producers = ProducerTable(groups_per_client_max=9)
    seen: dict[str, list[Command]] = {}
    for name in ("spy", "app"):
        sent = seen[name] = []
        channel = connection(name)
        channel.send = sent.append  # type: ignore[method-assign]
        producers.register("PG", Member(channel, name, 0, 0, seen_at_ms=0, heard_s=0.0))
    half = NewRecord(
        topic="T",
        queue_id=0,
        body=b"a secret",
        properties=encode_properties({"TRAN_MSG": "true", "PGROUP": "PG"}),
        born_at_ms=0,
        born_host=bytes(8),
        unique_key="u",
    )
    make_half(half)
    raw = encode_record(half, queue_offset=0, log_offset=0, stored_at_ms=0, store_host=bytes(8))
    stored, allowed = decode_record(raw), {"app"}
    core: Any = SimpleNamespace(options=BrokerOptions(broker_name="b"), producers=producers)
    asker = Asker(core, lambda channel, topic: topic == "T" and channel.peer[0] in allowed)
    place = Appended(1, (100,), 200, 0)
    for _ in range(4):
        assert asker.ask(stored, make_copy(stored, check_times=1), place)
    assert (len(seen["spy"]), len(seen["app"])) == (0, 4)
    allowed.clear()
    assert not asker.ask(stored, make_copy(stored, check_times=1), place)
