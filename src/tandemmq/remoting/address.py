"""Addresses as users and peers write them: `host:port`, `[v6]:port`, and lists of them joined by `;`."""

from __future__ import annotations

from tandemmq.errors import ConfigError
from tandemmq.runtime.ports import Address

PORT_MAX = 65535


def parse_address(text: str) -> Address:
    """(host, port); an IPv6 host may stand in brackets or bare.

    Raises:  ConfigError quoting the text.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX
    if not colon or not host or not is_port or any(character in host for character in "[] ,;/"):
        raise ConfigError(f"{text!r} is not an address; expected host:port or [v6]:port")
    return host, int(port)


def render_address(address: Address) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address_list(text: str) -> tuple[str, ...]:
    """The addresses of a `namesrvAddr` value (spec nameserver 1), each checked; doubles and blanks are
    dropped.

    Raises:  ConfigError quoting the first that is none.
    """
    addresses = dict.fromkeys(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    for address in addresses:
        parse_address(address)
    return tuple(addresses)
