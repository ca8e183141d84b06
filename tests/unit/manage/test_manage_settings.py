"""Settings beside their defaults: secrets are hidden, values of the machine have none."""

from __future__ import annotations

import pytest

from tandemmq.errors import ConfigError
from tandemmq.manage.settings import (
    HIDDEN,
    check_change,
    default_settings,
    describe_settings,
    named_controllers,
)

SHOWN = {
    "fileReservedTime": "50",
    "autoCreateTopicEnable": "true",
    "brokerName": "a",
    "initAuthenticationUser": '{"username":"x","password":"y"}',
    "storeKeyPassword": "",
}


def test_difference_from_the_default() -> None:
    rows = {row.key: row for row in describe_settings(SHOWN, is_tandem=True)}
    assert rows["fileReservedTime"].is_changed
    assert "whole number" in rows["fileReservedTime"].allowed
    assert not rows["autoCreateTopicEnable"].is_changed
    assert (rows["brokerName"].default, rows["brokerName"].allowed) == (None, "")
    assert rows["initAuthenticationUser"].value == HIDDEN
    assert rows["storeKeyPassword"].value == ""


def test_java_broker_has_values_only() -> None:
    rows = describe_settings(SHOWN, is_tandem=False)
    assert not any(row.is_changed for row in rows)
    assert all(row.allowed for row in rows)


def test_defaults_do_not_depend_on_the_machine() -> None:
    assert not {"storePathRootDir", "brokerName", "brokerIP1"} & default_settings().keys()


def test_only_an_elected_broker_names_its_controllers() -> None:
    named = {"controllerAddr": " 10.0.0.1:9878; 10.0.0.2:9878;"}
    assert named_controllers(named) == []
    elected = {**named, "enableControllerMode": "true"}
    assert named_controllers(elected) == ["10.0.0.1:9878", "10.0.0.2:9878"]


def test_invalid_change_is_refused_before_it_is_sent() -> None:
    check_change("fileReservedTime", "60", is_tandem=True)
    check_change("anything", "60", is_tandem=False)
    for key, value in (("fileReservedTime", "x"), ("brokerName", "b"), ("a\nb", "1"), ("a", "1\nb=2")):
        with pytest.raises(ConfigError):
            check_change(key, value, is_tandem=True)
    with pytest.raises(ConfigError):
        check_change("a", "1\nb=2", is_tandem=False)
