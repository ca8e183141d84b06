"""4.x accounts and 5.x policies: the permissions of users."""

from __future__ import annotations

import pytest

from tandemmq.broker.access.auth_table import PolicyLine, decide, parse_entry, parse_resource, render_resource
from tandemmq.broker.access.needs import ALL, CLUSTER, CREATE, GET, GROUP, PUB, SUB, TOPIC, UPDATE, Need
from tandemmq.broker.access.plain_rules import build_account, build_rules
from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies.tables import EntryInfo

KEYS = {"accessKey": "RocketMQ", "secretKey": "12345678"}


def account(**more: object) -> object:
    return build_account({**KEYS, **more})


def allows(raw: dict[str, object], need: Need) -> bool:
    return build_account({**KEYS, **raw}).allows(need)


def test_permissions_by_name_come_before_the_default() -> None:
    rules: dict[str, object] = {
        "defaultTopicPerm": "DENY",
        "defaultGroupPerm": "SUB",
        "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC = SUB"],
        "groupPerms": ["groupA=DENY", "%RETRY%groupB=SUB"],
    }
    allowed = {
        (TOPIC, "topicA", SUB): False,
        (TOPIC, "topicB", PUB): True,
        (TOPIC, "topicC", PUB): False,
        (TOPIC, "topicC", SUB | GET): True,
        (TOPIC, "other", SUB): False,
        (TOPIC, "RMQ_SYS_TRACE_TOPIC", PUB): True,
        (GROUP, "groupA", SUB): False,
        (GROUP, "groupB", SUB): True,
        (GROUP, "other", SUB): True,
        (TOPIC, "topicB", CREATE): False,
        (CLUSTER, "c", UPDATE): False,
        (CLUSTER, "c", GET): False,
        (CLUSTER, "c", 0): True,
    }
    assert {need: allows(rules, Need(*need)) for need in allowed} == allowed


def test_an_administrator_without_permissions_by_name_may_do_anything() -> None:
    assert allows({"admin": True}, Need(TOPIC, "x", PUB))
    assert allows({"admin": True}, Need(CLUSTER, "c", UPDATE))
    limited: dict[str, object] = {"admin": True, "topicPerms": ["topicA=DENY"]}
    assert not allows(limited, Need(TOPIC, "topicA", PUB))
    assert allows(limited, Need(TOPIC, "topicA", CREATE))


def test_rules_of_several_files() -> None:
    rules = build_rules(
        {
            "a.yml": {"globalWhiteRemoteAddresses": ["10.0.0.*"], "accounts": [{**KEYS, "admin": True}]},
            "b.yml": {"accounts": [KEYS, {**KEYS, "accessKey": "another1"}]},
            "empty.yml": None,
        }
    )
    assert rules.accounts["RocketMQ"].is_admin  # the first file's
    assert sorted(rules.accounts) == ["RocketMQ", "another1"]
    assert rules.is_white("10.0.0.9")
    assert not rules.is_white("10.0.1.9")
    assert "12345678" not in repr(rules)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"accessKey": "short", "secretKey": "12345678"}, "accessKey must have at least 7"),
        ({"accessKey": "RocketMQ", "secretKey": "123"}, "account RocketMQ: secretKey must have at least 7"),
        ({**KEYS, "topicPerms": ["nothing"]}, "topicPerms: 'nothing' must have the form"),
        ({**KEYS, "topicPerms": "a=PUB"}, "topicPerms: must be a list"),
        ({**KEYS, "whiteRemoteAddress": "x.y"}, "account RocketMQ: address pattern 'x.y'"),
        ({**KEYS, "namespacePerms": []}, "account RocketMQ: namespacePerms is none of"),
        ("text", "each must be a map"),
    ],
)
def test_rules_that_cannot_be_used_say_where(raw: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_rules({"plain_acl.yml": {"accounts": [raw]}})


def entry(resource: str, actions: str, decision: str = "Allow", *ips: str) -> PolicyLine:
    info = EntryInfo(resource=resource, actions=tuple(actions.split(",")), decision=decision, source_ips=ips)
    return parse_entry(info)


SEND = Need(TOPIC, "orders-eu", PUB)


@pytest.mark.parametrize(
    ("entries", "is_allowed"),
    [
        ([], False),
        ([entry("Topic:orders-eu", "Pub")], True),
        ([entry("Topic:orders-eu", "Sub")], False),
        ([entry("Group:orders-eu", "Pub")], False),
        ([entry("*", "All")], True),
        ([entry("Topic:orders-*", "pub"), entry("Topic:*", "All", "Deny")], True),
        ([entry("Topic:orders-eu", "Pub", "Deny"), entry("Topic:orders-*", "Pub")], False),
        ([entry("Topic:o*", "Pub", "Deny"), entry("Topic:orders*", "Pub")], True),
        ([entry("Topic:*", "Pub", "Deny"), entry("*", "Pub")], False),
        # Equally specific: one denial is enough, in either order.
        ([entry("Topic:orders-eu", "Pub"), entry("Topic:orders-eu", "All", "Deny")], False),
        ([entry("Topic:orders-eu", "All", "Deny"), entry("Topic:orders-eu", "Pub")], False),
        ([entry("Topic:orders-eu", "Pub", "Allow", "10.0.0.0/8", "::1")], True),
        ([entry("Topic:orders-eu", "Pub", "Allow", "192.168.1.1")], False),
        ([entry("Topic:orders-eu", "Pub", "Deny", "192.168.1.1"), entry("Topic:*", "Pub")], True),
    ],
)
def test_the_most_specific_entries_decide(entries: list[PolicyLine], is_allowed: bool) -> None:
    assert decide((entries, ()), SEND, "10.1.2.3") is is_allowed


def test_a_caller_without_a_numeric_address_is_in_no_network() -> None:
    need = Need(TOPIC, "orders", PUB)
    bound, free = entry("Topic:orders", "PUB", "Allow", "0.0.0.0/0"), entry("Topic:orders", "PUB")
    assert decide([[bound]], need, "10.0.0.1")
    assert not decide([[bound]], need, "broker.example")
    assert decide([[free]], need, "broker.example")


def test_custom_policies_decide_before_default_ones() -> None:
    default = (entry("Topic:*", "Pub"),)
    assert decide(((), default), SEND, "10.1.2.3")
    assert not decide(((entry("*", "Pub", "Deny"),), default), SEND, "10.1.2.3")
    assert decide(((), ()), Need(CLUSTER, "c", 0), "10.1.2.3")


def test_resources_are_written_as_they_are_read() -> None:
    for text in ("Topic:a", "Group:app-*", "Cluster:*", "Any:*"):
        assert render_resource(parse_resource(text)) == text
    assert render_resource(parse_resource("*")) == "Any:*"
    assert entry("Topic:a", "Any").actions == ALL


@pytest.mark.parametrize(
    ("resource", "actions", "decision", "ip"),
    [
        ("orders", "Pub", "Allow", ""),
        ("Topic:", "Pub", "Allow", ""),
        ("Topic:a*b", "Pub", "Allow", ""),
        ("Topic:a", "Publish", "Allow", ""),
        ("Topic:a", "Pub", "Perhaps", ""),
        ("Topic:a", "Pub", "Allow", "host"),
    ],
)
def test_entries_that_cannot_be_used(resource: str, actions: str, decision: str, ip: str) -> None:
    with pytest.raises(ConfigError):
        entry(resource, actions, decision, ip)
