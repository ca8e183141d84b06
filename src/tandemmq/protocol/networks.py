"""Networks of clients: the address that a broker advertises in each, and the ranges of client addresses that
belong to each. Pure.

A network is a name that operators choose; `INTERNAL` is that of the brokers themselves, in which each broker
has the address that it registers. Brokers send `NAME=host:port;NAME=host:port` with their registration
(`advertisedAddresses`), and name servers answer routes with the address of the asker's network.

Raises:  ValueError with a reason for malformed texts, in every function.
Source:  spec addresses 4 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

INTERNAL: Final = "internal"
NETWORKS_MAX: Final = 16
"""The most networks in which one broker has an address."""
HOST_CHARS_MAX: Final = 253

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_NUMBERS: Final = re.compile(r"[0-9.]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")

AddressRange = IPv4Network | IPv6Network
AddressRanges = tuple[tuple[AddressRange, str], ...]


def parse_advertised(text: str) -> dict[str, str]:
    """Returns network -> `host:port`, with IPv6 addresses in their shortest form."""
    addresses: dict[str, str] = {}
    for network, address in split_pairs(text):
        if network == INTERNAL:
            raise ValueError(f"{INTERNAL} is the network of the registered address, which brokerIP1 sets")
        if network in addresses:
            raise ValueError(f"network {network} has two addresses")
        addresses[network] = normalize_address(address)
    if len(addresses) > NETWORKS_MAX:
        raise ValueError(f"{len(addresses)} networks are more than {NETWORKS_MAX}")
    return addresses


def render_advertised(addresses: Mapping[str, str]) -> str:
    """Returns the text that `parse_advertised` reads."""
    return ";".join(f"{network}={address}" for network, address in addresses.items())


@lru_cache(maxsize=64)
def parse_ranges(text: str) -> AddressRanges:
    """Returns the ranges of `NAME=10.0.0.0/8,fd00::/8;NAME=...` with their networks, the longest prefix
    first.
    """
    ranges: dict[AddressRange, str] = {}
    for network, pieces in split_pairs(text):
        for piece in pieces.split(","):
            one = ip_network(piece.strip(), strict=False)
            if ranges.setdefault(one, network) != network:
                raise ValueError(f"{one} belongs to two networks")
    return tuple(sorted(ranges.items(), key=lambda item: -item[0].prefixlen))


def network_in_ranges(host: str, ranges: AddressRanges) -> str | None:
    """Returns the network of a numeric address by its longest matching range; None without a match."""
    if not ranges:
        return None
    try:
        address = plain_ip(host)
    except ValueError:
        return None
    return next((network for one, network in ranges if address in one), None)


def plain_ip(host: str) -> IPv4Address | IPv6Address:
    """Returns the address of a peer. An IPv4 peer of a socket for both families appears as ::ffff:a.b.c.d."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def split_pairs(text: str) -> Iterable[tuple[str, str]]:
    """Yields (network, value) of each `NAME=value` in a list separated by `;`."""
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        network, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not value:
            raise ValueError(f"{piece[:80]!r} must have the form NETWORK=value")
        if not _NAME.fullmatch(network):
            raise ValueError(
                f"{network[:80]!r} must be 1 to 64 letters, digits, dots, dashes and underscores"
            )
        yield network, value


def normalize_address(text: str) -> str:
    """Returns `host:port` or `[v6]:port`; the host is a number or a host name."""
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text[:80]!r} must be host:port or [v6]:port, the port within 1..65535")
    if host.startswith("[") and host.endswith("]"):
        return f"[{IPv6Address(host[1:-1])}]:{int(port)}"
    return f"{check_host(host)}:{int(port)}"


def check_host(text: str) -> str:
    """Returns an IPv4 address or a host name as it is."""
    if _NUMBERS.fullmatch(text):
        return str(ip_address(text))
    if len(text) > HOST_CHARS_MAX or not _HOST_NAME.fullmatch(text):
        raise ValueError(f"{text[:80]!r} must be an IPv4 address, a host name or an IPv6 address in brackets")
    return text
