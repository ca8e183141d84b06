"""The settings of servers as fields of options: `setting` makes a field that a name of RocketMQ sets, and a
`ValueKind` parses the texts of a setting and names the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.errors import ConfigError
from tandemmq.protocol.networks import check_host, parse_advertised, render_advertised
from tandemmq.protocol.signature import Credentials
from tandemmq.protocol.topic_names import parse_delay_levels, topic_fault
from tandemmq.units import INT32_MAX, INT64_MAX

SECRET_CHARS_MIN: Final = 16

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_COLLECTOR: Final = re.compile(r"(https?://)?(\[[^]\s]+\]|[^\s/?#:\[]+)(:[0-9]{1,5})?(/[^\s?#]*)?")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:;\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of values. `parse` returns the value of a text, and raises ValueError for any text that is not
    `allowed`.
    """

    allowed: str
    parse: Callable[[str], Any]
    is_secret: bool = False
    """True if the text must not be shown, not even in an error."""
    bounds: tuple[int, int] | None = None
    """The smallest and the largest value of whole numbers."""


def whole(low: int = 0, high: int = INT32_MAX) -> ValueKind:
    """Returns a kind of whole numbers, both bounds included."""

    def parse(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return ValueKind(f"a whole number from {low} to {high}", parse, bounds=(low, high))


def clamped(low: int, high: int) -> ValueKind:
    """Returns a kind of whole numbers; as in RocketMQ, a number out of range becomes the nearest bound
    (spec store 19).
    """

    def parse(text: str) -> int:
        if _WHOLE.fullmatch(text) is None:
            raise ValueError
        return min(max(int(text), low), high)

    return ValueKind(
        f"a whole number; the nearest one from {low} to {high} is used", parse, bounds=(low, high)
    )


def choice(options: type[Enum]) -> ValueKind:
    """Returns a kind for the members of an enum by name, in any case."""

    def parse(text: str) -> Enum:
        try:
            return options[text.upper()]
        except KeyError:
            raise ValueError from None

    return ValueKind("one of " + ", ".join(options.__members__), parse)


def words(*allowed: str) -> ValueKind:
    """Returns a kind for these words, written exactly so."""
    return ValueKind(" or ".join(allowed), checked(lambda text: text in allowed))


def checked(is_allowed: Callable[[str], bool], make: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """Returns a parser that makes the value of a text if the text is allowed."""

    def parse(text: str) -> Any:
        if not is_allowed(text):
            raise ValueError
        return make(text)

    return parse


def _or_empty(parse: Callable[[str], Any], empty: Any = "") -> Callable[[str], Any]:
    """Returns a parser that also allows an empty text, whose value is `empty`."""
    return lambda text: parse(text) if text else empty


def _parse_ip(text: str) -> str:
    return str(ip_address(text))


def _parse_host(text: str) -> str:
    return _parse_ip(text) if ":" in text else check_host(text)


def _parse_address(text: str) -> str:
    matched = _ADDRESS.fullmatch(text)
    if matched is None or not 1 <= int(matched[2]) <= 65535:
        raise ValueError
    return text


def _parse_addresses(text: str) -> tuple[str, ...]:
    return tuple(_parse_address(piece.strip()) for piece in text.split(";") if piece.strip())


def _parse_hours(text: str) -> tuple[int, ...]:
    hours = tuple(int(piece) for piece in text.split(";") if piece.strip())
    if not hours or any(not 0 <= hour <= 23 for hour in hours):
        raise ValueError
    return hours


def _parse_levels(text: str) -> tuple[int, ...]:
    try:
        return parse_delay_levels(text)
    except ConfigError:
        raise ValueError from None


def _parse_networks(text: str) -> tuple[str, ...]:
    networks = _parse_list(text)
    for one in networks:
        ip_network(one, strict=False)
    return networks


def _parse_credentials(name_key: str, secret_key: str, text: str) -> Credentials:
    value = msgspec.json.decode(text, type=dict[str, str])
    if set(value) != {name_key, secret_key} or not all(value.values()):
        raise ValueError
    return Credentials(value[name_key], value[secret_key])


def _parse_codes(text: str) -> frozenset[int]:
    return frozenset(int(piece) for piece in text.split(",") if piece.strip())


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in text.split(";") if piece.strip())


FLAG: Final = ValueKind(
    "true or false",
    checked(lambda text: text.lower() in ("true", "false"), lambda text: text.lower() == "true"),
)
TEXT: Final = ValueKind("text that is not empty", checked(lambda text: text != "" and text.isprintable()))
NAME: Final = ValueKind(  # a cluster's or broker's name also names a topic
    "1 to 127 of the characters %, |, -, _, digits and ASCII letters",
    checked(lambda text: not topic_fault(text)),
)
DIRECTORY: Final = ValueKind(
    "one directory (lists with a comma are not supported)",
    checked(lambda text: text != "" and not {"\0", ","} & set(text), Path),
)
FILE: Final = ValueKind("the path of a file", checked(lambda text: text != "" and "\0" not in text, Path))
IP: Final = ValueKind("a numeric IPv4 or IPv6 address", _parse_ip)
OPTIONAL_IP: Final = ValueKind("a numeric IPv4 or IPv6 address, or empty", _or_empty(_parse_ip))
ADDRESS: Final = ValueKind("host:port, or empty", _or_empty(_parse_address))
ADDRESSES: Final = ValueKind("host:port, several separated by ;", _parse_addresses)
NAME_SERVERS: Final = ValueKind(
    "host:port, several separated by ;", checked(lambda text: bool(_parse_addresses(text)))
)
HOST: Final = ValueKind("an IPv4 or IPv6 address, or a host name", _parse_host)
ADVERTISED: Final = ValueKind(
    "NETWORK=host:port, several separated by ;, IPv6 addresses in brackets, each network once",
    lambda text: render_advertised(parse_advertised(text)),
)
COLLECTOR: Final = ValueKind(
    "the address of a collector, such as http://127.0.0.1:4317; https without http://, or empty",
    _or_empty(checked(lambda text: _COLLECTOR.fullmatch(text) is not None)),
)
OPTIONAL_TEXT: Final = ValueKind("a text, or empty", checked(str.isprintable))
HOURS: Final = ValueKind("hours from 00 to 23, several separated by ;", _parse_hours)
DELAY_LEVELS: Final = ValueKind("delays such as 1s 5m 2h 1d, separated by blanks", _parse_levels)
IPS: Final = ValueKind(
    "numeric IPv4 or IPv6 addresses, separated by ;",
    lambda text: tuple(_parse_ip(piece) for piece in _parse_list(text)),
)
NETWORKS: Final = ValueKind("addresses or networks such as 10.0.0.0/8, separated by ;", _parse_networks)
SECRET: Final = ValueKind(
    f"at least {SECRET_CHARS_MIN} characters, or empty",
    checked(lambda text: not 0 < len(text) < SECRET_CHARS_MIN),
    is_secret=True,
)
PASSWORD: Final = ValueKind("a text, or empty", str, is_secret=True)
USER: Final = ValueKind(
    'JSON such as {"username":"admin","password":"..."}',
    _or_empty(partial(_parse_credentials, "username", "password"), None),
    is_secret=True,
)
CREDENTIALS: Final = ValueKind(
    'JSON such as {"accessKey":"inner","secretKey":"..."}',
    _or_empty(partial(_parse_credentials, "accessKey", "secretKey"), None),
    is_secret=True,
)
CODES: Final = ValueKind("request codes (numbers), separated by commas", _parse_codes)
OPTIONAL_FILE: Final = ValueKind(
    "the path of a file, or empty", _or_empty(lambda text: Path(text).expanduser(), None)
)
LIST: Final = ValueKind("names separated by ;", _parse_list)
PORT: Final = whole(0, 65535)
POSITIVE: Final = whole(1)
POSITIVE_LONG: Final = whole(1, INT64_MAX)


def setting(name: str, default: Any = MISSING, kind: ValueKind | None = None, *, live: bool = False) -> Any:
    """Returns a field of options that the setting `name` sets. Several fields may have one name.

    `kind` None: as the default shows, a flag, a member of an enum, or a whole number above 0. `live`: the
    setting of a running broker can be changed.
    """
    found = kind or _kind_of_default(default)
    metadata = {"key": name, "kind": found, "live": live}
    return field(default=default, metadata=metadata, repr=not found.is_secret)


def _kind_of_default(default: Any) -> ValueKind:
    if isinstance(default, bool):
        return FLAG
    if isinstance(default, Enum):
        return choice(type(default))
    assert isinstance(default, int), f"the kind of {default!r} must be given"
    return POSITIVE


def option_keys(options: type[Any]) -> dict[str, Field[Any]]:
    """Returns RocketMQ's key -> the field of the options that it sets; fields without a key are left out."""
    return {one.metadata["key"]: one for one in fields(options) if "key" in one.metadata}


def check_ranges(options: Any) -> None:
    """Checks the whole numbers of options; those without a setting must be above 0. Raises ConfigError."""
    for one in fields(options):
        kind, value = one.metadata.get("kind", POSITIVE_LONG), getattr(options, one.name)
        if one.type == "int" and kind.bounds and not kind.bounds[0] <= value <= kind.bounds[1]:
            low, high = kind.bounds
            raise ConfigError(f"{one.name}: {value} is outside {low}..{high}")
