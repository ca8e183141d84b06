"""The kinds of setting values: each parses a text to a value, and names the values that are allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
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
from tandemmq.telemetry.export_options import MetricsExporter, parse_pairs
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


def whole(low: int = 0, high: int = INT32_MAX) -> ValueKind:
    """Returns a kind of whole numbers, both bounds included."""

    def parse(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return ValueKind(f"a whole number from {low} to {high}", parse)


def clamped(low: int, high: int) -> ValueKind:
    """Returns a kind of whole numbers; as in RocketMQ, a number out of range becomes the nearest bound
    (spec store 19).
    """

    def parse(text: str) -> int:
        if _WHOLE.fullmatch(text) is None:
            raise ValueError
        return min(max(int(text), low), high)

    return ValueKind(f"a whole number; the nearest one from {low} to {high} is used", parse)


def choice(options: type[Enum]) -> ValueKind:
    """Returns a kind for the members of an enum by name, in any case."""

    def parse(text: str) -> Enum:
        try:
            return options[text.upper()]
        except KeyError:
            raise ValueError from None

    return ValueKind("one of " + ", ".join(options.__members__), parse)


def _checked(is_allowed: Callable[[str], bool], make: Callable[[str], Any] = str) -> Callable[[str], Any]:
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


def _parse_traces_exporter(text: str) -> MetricsExporter:
    found = MetricsExporter(text.upper())
    if found in (MetricsExporter.PROM, MetricsExporter.LOG):
        raise ValueError
    return found


def _are_pairs(text: str) -> bool:
    return parse_pairs(text) is not None and text.isprintable()


def _are_labels(text: str) -> bool:
    from tandemmq.telemetry.label_names import is_free  # only if needed: the tables of all metrics

    return _are_pairs(text) and all(map(is_free, parse_pairs(text)))


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in text.split(";") if piece.strip())


FLAG: Final = ValueKind(
    "true or false",
    _checked(lambda text: text.lower() in ("true", "false"), lambda text: text.lower() == "true"),
)
TEXT: Final = ValueKind("text that is not empty", _checked(lambda text: text != "" and text.isprintable()))
NAME: Final = ValueKind(  # a cluster's or broker's name also names a topic
    "1 to 127 of the characters %, |, -, _, digits and ASCII letters",
    _checked(lambda text: not topic_fault(text)),
)
DIRECTORY: Final = ValueKind(
    "one directory (lists with a comma are not supported)",
    _checked(lambda text: text != "" and not {"\0", ","} & set(text), Path),
)
FILE: Final = ValueKind("the path of a file", _checked(lambda text: text != "" and "\0" not in text, Path))
IP: Final = ValueKind("a numeric IPv4 or IPv6 address", _parse_ip)
OPTIONAL_IP: Final = ValueKind("a numeric IPv4 or IPv6 address, or empty", _or_empty(_parse_ip))
ADDRESS: Final = ValueKind("host:port, or empty", _or_empty(_parse_address))
ADDRESSES: Final = ValueKind("host:port, several separated by ;", _parse_addresses)
NAME_SERVERS: Final = ValueKind(
    "host:port, several separated by ;", _checked(lambda text: bool(_parse_addresses(text)))
)
HOST: Final = ValueKind("an IPv4 or IPv6 address, or a host name", _parse_host)
ADVERTISED: Final = ValueKind(
    "NETWORK=host:port, several separated by ;, IPv6 addresses in brackets, each network once",
    lambda text: render_advertised(parse_advertised(text)),
)
TRACES_EXPORTER: Final = ValueKind("one of DISABLE, OTLP_GRPC, OTLP_HTTP", _parse_traces_exporter)
PAIRS: Final = ValueKind("name:value, several separated by commas, or empty", _checked(_are_pairs))
LABELS: Final = ValueKind(
    "name:value, several separated by commas, or empty; a name has ASCII letters, digits and _, does not"
    " begin with a digit or __, and is not a label that a metric has, such as cluster, topic, group or le",
    _checked(_are_labels),
)
COLLECTOR: Final = ValueKind(
    "the address of a collector, such as http://127.0.0.1:4317; https without http://, or empty",
    _or_empty(_checked(lambda text: _COLLECTOR.fullmatch(text) is not None)),
)
OPTIONAL_TEXT: Final = ValueKind("a text, or empty", _checked(str.isprintable))
HOURS: Final = ValueKind("hours from 00 to 23, several separated by ;", _parse_hours)
DELAY_LEVELS: Final = ValueKind("delays such as 1s 5m 2h 1d, separated by blanks", _parse_levels)
IPS: Final = ValueKind(
    "numeric IPv4 or IPv6 addresses, separated by ;",
    lambda text: tuple(_parse_ip(piece) for piece in _parse_list(text)),
)
NETWORKS: Final = ValueKind("addresses or networks such as 10.0.0.0/8, separated by ;", _parse_networks)
SECRET: Final = ValueKind(
    f"at least {SECRET_CHARS_MIN} characters, or empty",
    _checked(lambda text: not 0 < len(text) < SECRET_CHARS_MIN),
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
