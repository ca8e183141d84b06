"""The texts of networks: advertised addresses and ranges of clients."""

from __future__ import annotations

import pytest

from tandemmq.protocol.networks import network_in_ranges, parse_advertised, parse_ranges, render_advertised


def test_addresses_are_numbers_names_and_bracketed_ipv6() -> None:
    text = "public=203.0.113.7:20911; vpn=b1.vpn.example:10911;six=[2001:DB8:0::1]:10911;"
    addresses = parse_advertised(text)
    assert addresses == {
        "public": "203.0.113.7:20911",
        "vpn": "b1.vpn.example:10911",
        "six": "[2001:db8::1]:10911",
    }
    assert parse_advertised(render_advertised(addresses)) == addresses
    assert parse_advertised("") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("203.0.113.7:20911", "form NETWORK=value"),
        ("public=", "form NETWORK=value"),
        ("internal=10.0.0.1:1", "brokerIP1"),
        ("public=a:1;public=b:1", "two addresses"),
        ("pub lic=a:1", "letters"),
        ("public=a", "host:port"),
        ("public=a:0", "1..65535"),
        ("public=a:65536", "1..65535"),
        ("public=2001:db8::1:10911", "host name"),
        ("public=[fe80::zz]:1", "fe80::zz"),
        ("public=10.0.0.300:1", "10.0.0.300"),
        ("public=-a.example:1", "host name"),
        (";".join(f"n{number}=a:1" for number in range(17)), "more than 16"),
    ],
)
def test_malformed_addresses_are_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_advertised(text)


def test_longest_range_decides() -> None:
    ranges = parse_ranges("office=10.0.0.0/8,fd00::/8;internal=10.1.0.0/16;public=0.0.0.0/0")
    assert network_in_ranges("10.2.0.1", ranges) == "office"
    assert network_in_ranges("10.1.0.1", ranges) == "internal"
    assert network_in_ranges("192.0.2.1", ranges) == "public"
    assert network_in_ranges("fd00::1%eth0", ranges) == "office"
    assert network_in_ranges("::ffff:10.1.0.1", ranges) == "internal"
    assert network_in_ranges("2001:db8::1", ranges) is None
    assert network_in_ranges("a-name", ranges) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("office", "form NETWORK=value"),
        ("office=10.0.0.0/40", "10.0.0.0/40"),
        ("office=x", "'x'"),
        ("a=10.0.0.0/8;b=10.0.0.0/8", "two networks"),
    ],
)
def test_malformed_ranges_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_ranges(text)
