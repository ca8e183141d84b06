"""Settings of brokers, compared with the defaults of a broker on an ordinary machine; and their change.

The defaults are those of TandemMQ's brokers. For Java's brokers only the values are known.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tandemmq.api import broker_admin
from tandemmq.broker.admin.settings import CHANGEABLE, parse_change, render_settings
from tandemmq.config.load import MachineFacts, load_broker
from tandemmq.config.names import BROKER_KEYS
from tandemmq.errors import ConfigError
from tandemmq.manage.tools import Tools
from tandemmq.protocol.bodies.codec import REFUSALS_KEY
from tandemmq.units import GIB

HIDDEN: Final = "(hidden)"
"""The text in place of a secret."""
_MACHINE: Final = MachineFacts(host_name="a", address="192.0.2.1", memory_bytes=8 * GIB, home=Path("/a"))
_OTHER_MACHINE: Final = replace(
    _MACHINE, host_name="b", address="192.0.2.2", memory_bytes=16 * GIB, home=Path("/b")
)
_SECRET_WORDS: Final = ("password", "passwd", "secret", "credential", "token", "authenticationuser")
_KEY: Final = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of one broker. `default` is None if it is not known or depends on the machine. `allowed`
    describes the values of a setting that can be changed while the broker runs; empty for the others.
    """

    key: str
    value: str
    default: str | None
    allowed: str

    @property
    def is_changed(self) -> bool:
        """True if the value differs from a known default."""
        return self.default is not None and self.value != self.default

    @property
    def is_secret(self) -> bool:
        """True if the value is not shown."""
        return is_secret_setting(self.key)


async def read_settings_of(tools: Tools, address: str) -> dict[str, str]:
    """Returns all settings that a broker shows, as it shows them."""
    return await broker_admin.query_broker_config(tools.remoting, address)


def named_controllers(settings: Mapping[str, str]) -> list[str]:
    """Returns the controllers that elect the master of a broker with these settings."""
    if settings.get("enableControllerMode") != "true":
        return []
    return [name.strip() for name in settings.get("controllerAddr", "").split(";") if name.strip()]


def describe_settings(settings: Mapping[str, str], *, is_tandem: bool) -> list[SettingRow]:
    """Returns the settings by key, with secrets hidden. Any setting of a Java broker may be changeable: the
    broker decides.
    """
    defaults = default_settings() if is_tandem else {}
    rows = []
    for key, value in sorted(settings.items()):
        allowed = _allowed(key) if is_tandem else "as RocketMQ documents it"
        rows.append(
            SettingRow(key, HIDDEN if is_secret_setting(key) and value else value, defaults.get(key), allowed)
        )
    return rows


def is_tandem(facts: Mapping[str, str]) -> bool:
    """Returns True if the runtime information is that of a TandemMQ broker."""
    return REFUSALS_KEY in facts


@functools.cache
def default_settings() -> Mapping[str, str]:
    """Returns the defaults that do not depend on the machine, as brokers show them."""
    one, other = (
        render_settings(loaded.broker, loaded.store, loaded.access)
        for loaded in (load_broker({}, machine) for machine in (_MACHINE, _OTHER_MACHINE))
    )
    return {key: text for key, text in one.items() if other[key] == text}


def check_change(key: str, value: str, *, is_tandem: bool) -> None:
    """Checks a change before it is sent. Raises ConfigError with what is allowed."""
    if not _KEY.fullmatch(key):
        raise ConfigError("a setting's name has only letters, digits, '_', '.' and '-'")
    if not value.isprintable():
        raise ConfigError("a setting's value must be a printable text")
    if not is_tandem:
        return
    if key not in CHANGEABLE:
        raise ConfigError(f"{key} cannot be changed while the broker runs")
    parse_change(key, value)


async def change_setting(tools: Tools, addresses: Iterable[str], key: str, value: str) -> list[str]:
    """Changes a setting at these brokers; returns the brokers' remarks, such as that the change is not saved.
    Raises the errors of `change_each`.
    """
    found = await tools.change(addresses, broker_admin.change_broker_config, key, value)
    return [f"{address}: {remark}" for address, remark in found if remark]


def _allowed(key: str) -> str:
    change = CHANGEABLE.get(key)
    return "" if change is None else change.kind.allowed


def is_secret_setting(key: str) -> bool:
    """Returns True if values of this setting must not be shown: it is marked secret, its name says so, or it
    is not a valid name, so that a broker may read it as another one.
    """
    known = BROKER_KEYS.get(key)
    if known is not None and known.kind.is_secret:
        return True
    return not _KEY.fullmatch(key) or any(word in key.lower() for word in _SECRET_WORDS)
