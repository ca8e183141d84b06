"""Address patterns of plain_acl.yml (spec semantics 21.2)."""

from __future__ import annotations

import pytest

from tandemmq.broker.access.plain_rules import make_matcher
from tandemmq.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", [], ["127.0.0.1", ""]),
        ("*", ["127.0.0.1", "::1", "anything"], []),
        ("*.*.*.*", ["10.1.2.3"], []),
        ("*:*:*:*:*:*:*:*", ["10.1.2.3"], []),
        ("10.0.0.7", ["10.0.0.7", "::ffff:10.0.0.7"], ["10.0.0.8", "no address"]),
        ("10.0.0.7,10.0.0.9", ["10.0.0.7", "10.0.0.9"], ["10.0.0.8"]),
        ("10.0.0.{1,7}", ["10.0.0.1", "10.0.0.7"], ["10.0.0.17", "10.0.1.1"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.0"]),
        ("10.0.1-9.*", ["10.0.1.5", "10.0.9.255"], ["10.0.10.5", "10.0.0.5"]),
        ("10.0.0.3-5", ["10.0.0.3", "10.0.0.5"], ["10.0.0.6"]),
        ("10.*.*.*", ["10.9.8.7"], ["11.9.8.7", "::1"]),
        ("1050:0:0:0:5:600:300c:1", ["1050::5:600:300C:1"], ["1050::5:600:300c:2"]),
        ("1050::0005:0600:300c:{1,3}", ["1050::5:600:300c:3"], ["1050::5:600:300c:2"]),
        ("1050:0:0:0:5:600:300c:1-200", ["1050::5:600:300c:1ff"], ["1050::5:600:300c:201", "10.0.0.1"]),
        ("1050:0:0:0:5:*", ["1050::5:600:300c:1"], ["1050::6:600:300c:1"]),
    ],
)
def test_a_pattern_holds_what_it_says(pattern: str, inside: list[str], outside: list[str]) -> None:
    matches = make_matcher(pattern)
    assert [address for address in inside if not matches(address)] == []
    assert [address for address in outside if matches(address)] == []


@pytest.mark.parametrize(
    "pattern",
    ["10.0.0", "10.0.0.256", "*.0.0.1", "10.*.0.1", "10.0.5-3.*", "10.0.0.{a,b}", "host"],
)
def test_invalid_address_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="address pattern"):
        make_matcher(pattern)
