"""What a user may do from one address says nothing of another, also when it was asked before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from sim.memory import ManualClock
from tandemmq.broker.access.auth_table import AuthTable
from tandemmq.broker.access.guard import Audit, Guard
from tandemmq.broker.options import AccessOptions
from tandemmq.errors import NotPermitted
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.channel import Channel

APP = Credentials("app", "secret-of-app")


def connection(host: str) -> Channel:
    """As far as it is asked."""
    return cast(Channel, SimpleNamespace(peer=(host, 5), make_known=lambda: None))


def test_an_allowance_for_one_address_is_not_remembered_for_others() -> None:
    users = AuthTable()
    users.create_user(UserInfo(password=APP.secret_key), APP.access_key)
    entry = EntryInfo(actions=("Pub",), decision="ALLOW", resource="Topic:T", source_ips=("10.0.0.1",))
    users.create_acl(AclInfo(policies=(PolicyInfo(entries=(entry,)),)), f"User:{APP.access_key}")
    guard = Guard(
        AccessOptions(authentication_enabled=True, authorization_enabled=True),
        cluster="C",
        users=users,
        audit=Audit(ManualClock()),
        inner=None,
    )
    command = Command(code=RequestCode.SEND_MESSAGE, opaque=1, extra_fields={"topic": "T"})
    APP.sign(command)
    for _ in range(2):
        guard.check(connection("10.0.0.1"), command)
        with pytest.raises(NotPermitted, match="app may not Pub Topic:T"):
            guard.check(connection("10.0.0.2"), command)
