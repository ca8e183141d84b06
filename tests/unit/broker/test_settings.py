"""Settings that change while the broker runs (spec semantics 23.1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.broker.admin.settings import CHANGEABLE, apply_changes, parse_change, render_settings
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.config.names import BROKER_KEYS
from tandemmq.errors import ConfigError
from tandemmq.protocol.properties_file import edit_properties, parse_properties
from tandemmq.protocol.signature import Credentials
from tandemmq.store.options import StoreOptions


@pytest.mark.parametrize("key", CHANGEABLE)
def test_change_sets_what_the_configuration_file_sets(key: str) -> None:
    change = CHANGEABLE[key]
    known = BROKER_KEYS[key]
    assert known.fields == (f"{change.part}.{change.field}",)
    shown = render_settings(BrokerOptions(), StoreOptions(root=Path("/store")))[key]
    parsed, value = parse_change(key, shown)
    assert (parsed, value) == (change, known.kind.parse(shown))


def test_every_setting_but_secrets_is_shown() -> None:
    access = AccessOptions(inner_credentials=Credentials("inner", "hidden"), first_user=Credentials("a", "b"))
    options = BrokerOptions(otlp_headers="key:hidden")
    shown = render_settings(options, StoreOptions(root=Path("/store")), access)
    parts = {"broker", "store", "access"}
    named = {name for name, key in BROKER_KEYS.items() if key.fields[0].partition(".")[0] in parts}
    secret = {"innerClientAuthenticationCredentials", "initAuthenticationUser", "metricsGrpcExporterHeader"}
    assert shown.keys() == named - secret | {"enableControllerMode"}
    assert "hidden" not in f"{shown} {options} {access}"


def test_each_shown_setting_can_be_written_to_the_configuration_file() -> None:
    access = AccessOptions(authentication_white_codes=frozenset({11, 10}))
    shown = render_settings(BrokerOptions(), StoreOptions(root=Path("/store")), access)
    for name, text in shown.items():
        BROKER_KEYS[name].kind.parse(text)
    assert shown["storePathCommitLog"] == "/store/commitlog"
    assert shown["authenticationWhitelist"] == "10,11"


def test_nothing_that_names_a_place_or_an_identity_can_be_changed() -> None:
    words = (
        "path",
        "dir",
        "addr",
        "port",
        "ip1",
        "ip2",
        "name",
        "home",
        "secret",
        "host",
        "role",
        "brokerid",
    )
    # "ControlEnable" contains "role". Advertised addresses identify no broker: only clients use them.
    keys = [key.replace("ControlEnable", "").lower() for key in CHANGEABLE if key != "advertisedAddresses"]
    assert not [key for key in keys if any(word in key for word in words)]


def test_changes_come_all_at_once_or_not_at_all() -> None:
    broker, store = BrokerOptions(), StoreOptions(root=Path("/store"))
    changes = {
        "longPollingEnable": parse_change("longPollingEnable", "false"),
        "deleteWhen": parse_change("deleteWhen", "01;02"),
    }
    apply = apply_changes(broker, store, changes)
    assert (broker.long_polling_enable, store.delete_at_hours) == (
        True,
        StoreOptions(root=Path("/")).delete_at_hours,
    )
    apply()
    assert (broker.long_polling_enable, store.delete_at_hours) == (False, (1, 2))


@pytest.mark.parametrize(
    ("key", "text"),
    [("longPollingEnable", "yes"), ("brokerPermission", "8"), ("fileReservedTime", "0"), ("deleteWhen", "")],
)
def test_value_that_does_not_fit_is_named_with_what_does(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={text}: must be"):
        parse_change(key, text)


FILES = [
    (b"", b"a=1\n"),
    (b"a=0\n", b"a=1\n"),
    (b"# a=0\n! a=0\na = 0\n", b"# a=0\n! a=0\na=1\n"),
    (b"a=0\nb=2\na:0", b"a=0\nb=2\na=1\n"),
    (b"x=\\\na=5\n", b"x=\\\na=5\na=1\n"),
    (b"a=0,\\\n  2,\\\n  3\nb=2\n", b"a=1\nb=2\n"),
    (b"name=\xe4\na 0\n", b"name=\xe4\na=1\n"),
    (b"aa=0\r\na=0\r\n", b"aa=0\na=1\n"),
]


@pytest.mark.parametrize(("before", "after"), FILES)
def test_file_keeps_its_other_lines(before: bytes, after: bytes) -> None:
    edited = edit_properties(before, {"a": "1"})
    assert edited == after
    assert parse_properties(edited, "file")["a"].text == "1"


def test_text_with_a_backslash_is_read_back() -> None:
    edited = edit_properties(b"", {"a": "c:\\d\ne"})
    assert parse_properties(edited, "file")["a"].text == "c:\\d\ne"
