"""Loads the options of the components from a properties file and `--set key=value`.

Invariants: no setting is ignored silently: it sets a field, or is in `inert` for a warning, or is an error
            that names the key, its origin and the allowed values.
Knows not:  the machine; defaults that depend on it are passed in as `MachineFacts`.
Source:     spec store 20, spec semantics 25.2 to 25.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tandemmq.broker.options import (
    AccessOptions,
    BrokerConfig,
    BrokerOptions,
    ElectionOptions,
    InnerProxyOptions,
)
from tandemmq.config.names import (
    ALIASES,
    BROKER_INERT,
    BROKER_KEYS,
    CONTROLLER_INERT,
    CONTROLLER_KEYS,
    NAMESERVER_INERT,
    NAMESERVER_KEYS,
    PROXY_INERT,
    PROXY_KEYS,
    REFUSED,
    TLS_FILE_KEYS,
    Key,
)
from tandemmq.controller import options as controller_options
from tandemmq.controller.options import ControllerConfig, ControllerOptions
from tandemmq.errors import ConfigError, LocalProtocolError
from tandemmq.nameserver.options import CHANGEABLE_KEYS, CONFIG_STORE_PATH, NameServerOptions
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties_file import Setting, parse_override, parse_properties
from tandemmq.protocol.signature import Credentials
from tandemmq.protocol.topic_names import topic_fault
from tandemmq.proxy.options import ProxyConfig, ProxyOptions
from tandemmq.remoting.options import TlsOptions
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.store.options import BrokerRole, FlushMode, StoreOptions

T = TypeVar("T")

_ANY_ADDRESS = ("0.0.0.0", "::")
_FIELD_NAME = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_KEY_OF_FIELD = {
    name: key_name
    for keys in (BROKER_KEYS, NAMESERVER_KEYS, CONTROLLER_KEYS, PROXY_KEYS)
    for key_name, key in keys.items()
    for name in key.fields
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts about the machine on which the defaults of some settings depend."""

    host_name: str
    address: str
    memory_bytes: int
    home: Path
    rocketmq_home: Path = Path()
    """ROCKETMQ_HOME: the rules of access control are in its folder conf."""
    name_servers: str = ""
    resolve: Callable[[str], str] = str
    """Returns the numeric address of a host, a number as it is. Raises OSError."""

    @property
    def listen_host(self) -> str:
        """The default of bindAddress: all addresses of both families on a machine without an IPv4 route."""
        return "::" if ":" in self.address else _ANY_ADDRESS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """All options of a name server. `inert` contains the given keys that have no effect here."""

    options: NameServerOptions
    tls: TlsOptions
    credentials: Credentials | None
    """innerClientAuthenticationCredentials: the credentials that sign notifications to brokers."""
    inert: tuple[str, ...]
    controller: ControllerOptions | None = None
    """The options of the controller in the same process (enableControllerInNamesrv)."""


@dataclass(slots=True)
class _Parts:
    """The values by `part.field`, and the origin of each."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    inert: list[str] = field(default_factory=list)


def read_settings(path: Path | None, overrides: Iterable[str]) -> dict[str, Setting]:
    """Reads the settings of the file, then of the overrides, which win.

    Raises:  ConfigError if the file cannot be read or its content is malformed.
    """
    settings: dict[str, Setting] = {}
    if path is not None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        read = _parse_json if data.lstrip().startswith(b"{") else parse_properties
        settings.update(read(data, path.name))
    for argument in overrides:
        key, setting = parse_override(argument)
        settings[key] = setting
    for name in TLS_FILE_KEYS:
        if name in settings:
            settings = {**_read_tls_file(Path(settings.pop(name).text)), **settings}
    return settings


def _parse_json(data: bytes, origin: str) -> dict[str, Setting]:
    """Reads the settings of a JSON object, the form of rmq-proxy.json. Raises ConfigError."""
    try:
        values = msgspec.json.decode(data, type=dict[str, str | int | float | bool | None])
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{origin}: must be a JSON object of texts, numbers and booleans: {error}"
        ) from None
    return {
        key: Setting(str(value).lower() if isinstance(value, bool) else str(value), origin)
        for key, value in values.items()
        if value is not None
    }


def _read_tls_file(path: Path) -> dict[str, Setting]:
    """Reads the TLS settings of the file.

    Raises:  ConfigError when the file cannot be read or contains any other setting.
    """
    try:
        found = parse_properties(path.read_bytes(), path.name)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    others = [key for key in found if not key.startswith("tls.") or key in TLS_FILE_KEYS]
    if others:
        raise ConfigError(
            f"{found[others[0]].origin}: {others[0]} does not belong into a file of TLS settings"
        )
    return found


def with_saved_settings(
    settings: Mapping[str, Setting],
    path: Path | None,
    *,
    default_path: Path = CONFIG_STORE_PATH,
    changeable: frozenset[str] = CHANGEABLE_KEYS,
) -> dict[str, Setting]:
    """Returns a server's settings, completed by those that tools changed in earlier runs.

    Changes are saved in the file of configStorePath. Its default is `path`, the file that the server was
    started with; without one, it is `default_path`. Only `changeable` keys are read from it, and `settings`
    win.
    Raises:  ConfigError as `read_settings`.
    """
    named = settings.get("configStorePath")
    saved_path = Path(named.text) if named is not None else path or default_path
    if saved_path == path or not saved_path.exists():
        return dict(settings)
    kept = read_settings(saved_path, ())
    return {**{key: kept[key] for key in kept.keys() & changeable}, **settings}


def load_name_server(
    settings: Mapping[str, Setting], path: Path | None = None, *, listen_host: str = _ANY_ADDRESS[0]
) -> NameServerConfig:
    """Loads the options of a name server. `path` is the file that it was started with; changes by tools are
    saved there. `listen_host` is the default of bindAddress.

    Raises:  ConfigError as `load_broker`.
    """
    keys = {**CONTROLLER_KEYS, **NAMESERVER_KEYS}
    parts = _read_keys(settings, keys, NAMESERVER_INERT, "name server", BROKER_KEYS)
    parts.values.setdefault("nameserver.listen_host", listen_host)
    if path is not None:
        parts.values.setdefault("nameserver.config_store_path", path)
    controller = None
    if parts.values.get("caller.has_controller"):
        controller = _build_controller(parts, listen_host=parts.values["nameserver.listen_host"])
    return NameServerConfig(
        controller=controller,
        options=_build(NameServerOptions, "nameserver", parts),
        tls=_build(TlsOptions, "tls", parts),
        credentials=parts.values.get("caller.credentials"),
        inert=tuple(parts.inert),
    )


def load_controller(
    settings: Mapping[str, Setting], path: Path | None = None, *, listen_host: str = _ANY_ADDRESS[0]
) -> ControllerConfig:
    """Loads the options of a standalone controller; changes by tools are saved in `path`. `listen_host` is
    the default of bindAddress.

    Raises:  ConfigError as `load_broker`.
    """
    settings = with_saved_settings(
        settings,
        path,
        default_path=controller_options.CONFIG_STORE_PATH,
        changeable=controller_options.CHANGEABLE_KEYS,
    )
    parts = _read_keys(settings, CONTROLLER_KEYS, CONTROLLER_INERT, "controller", BROKER_KEYS)
    if path is not None:
        parts.values.setdefault("controller.config_store_path", path)
    return ControllerConfig(
        options=_build_controller(parts, listen_host=listen_host),
        tls=_build(TlsOptions, "tls", parts),
        credentials=parts.values.get("caller.credentials"),
        inert=tuple(parts.inert),
    )


def load_proxy(settings: Mapping[str, Setting], machine: MachineFacts) -> ProxyConfig:
    """Loads the options of a proxy. Raises ConfigError as `load_broker`."""
    parts = _read_keys(settings, PROXY_KEYS, PROXY_INERT, "proxy", BROKER_KEYS)
    listen_host = parts.values.setdefault("proxy.listen_host", machine.listen_host)
    parts.values.setdefault(
        "proxy.local_host", machine.address if listen_host in _ANY_ADDRESS else listen_host
    )
    parts.values.setdefault("proxy.name", machine.host_name)
    parts.values.setdefault("proxy.acl_directory", machine.rocketmq_home / "conf")
    if machine.name_servers:
        parts.values.setdefault("proxy.name_servers", machine.name_servers)
    # A broker that enforces TLS dials the others with TLS. The mode of a proxy is for its own clients only.
    parts.values.setdefault("tls.dials_tls", False)
    return ProxyConfig(
        options=_build(ProxyOptions, "proxy", parts),
        tls=_build(TlsOptions, "tls", parts),
        credentials=parts.values.get("caller.credentials"),
        inert=tuple(parts.inert),
    )


def _build_controller(parts: _Parts, *, listen_host: str) -> ControllerOptions:
    """Builds the options. `listen_host` is the default, or that of the name server in the same process, whose
    settings do not apply to the controller.
    """
    values = parts.values
    for name in ("peers", "self_id"):
        if f"controller.{name}" not in values:
            key = _KEY_OF_FIELD[f"controller.{name}"]
            raise ConfigError(f"{key} is missing: a controller must know its own name and its peers")
    values.setdefault("controller.listen_host", listen_host)
    root = values.get("controller.store_path", controller_options.STORE_PATH)
    values.setdefault("controller.config_store_path", root / "controller.properties")
    return _build(ControllerOptions, "controller", parts)


def load_broker(
    settings: Mapping[str, Setting], machine: MachineFacts, path: Path | None = None
) -> BrokerConfig:
    """Loads the options of a broker. `path` is the file that it was started with; changes by tools are saved
    there.

    Raises:  ConfigError for the first setting that is unknown, ill-typed, out of range, not supported, or
             contradicts another.
    """
    parts = _read_keys(settings, BROKER_KEYS, BROKER_INERT, "broker", NAMESERVER_KEYS)
    values = parts.values
    _set_machine_defaults(values, machine)
    values["broker.config_path"] = path
    notes = check_broker(values, {key: setting.text for key, setting in settings.items()})
    host = values["broker.advertised_host"]
    try:
        values["broker.store_ip"] = machine.resolve(host)
        encode_host(values["broker.store_ip"], 0)
    except (OSError, LocalProtocolError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"brokerIP1={host}: message ids need its numeric address: {reason}") from None
    broker = _build(BrokerOptions, "broker", parts)
    values["store.store_host"] = encode_host(broker.store_ip, broker.listen_port)
    store = _build(StoreOptions, "store", parts)
    # A slave must accept every record that its master's limits allow.
    largest = ReplicationOptions().record_bytes_max
    values.setdefault("replication.record_bytes_max", max(largest, store.record_bytes_max))
    proxy = _build(InnerProxyOptions, "inner_proxy", parts)
    if proxy.is_enabled and not broker.name_servers:
        raise ConfigError("enableProxy=true needs namesrvAddr: the proxy finds brokers by a name server")
    return BrokerConfig(
        broker=broker,
        proxy=proxy,
        store=store,
        replication=_build(ReplicationOptions, "replication", parts),
        election=_build(ElectionOptions, "election", parts),
        access=_build(AccessOptions, "access", parts),
        tls=_build(TlsOptions, "tls", parts),
        inert=tuple(parts.inert),
        notes=notes,
    )


def _set_machine_defaults(values: dict[str, Any], machine: MachineFacts) -> None:
    listen_host = values.setdefault("broker.listen_host", machine.listen_host)
    own = machine.address if listen_host in _ANY_ADDRESS else listen_host
    values.setdefault("broker.advertised_host", own)
    values.setdefault("store.root", machine.home / "store")
    values.setdefault("access.acl_directory", machine.rocketmq_home / "conf")
    values.setdefault("store.memory_bytes", machine.memory_bytes)
    # A host name may contain dots, which a broker name may not; the default of the options applies then.
    host_label = machine.host_name.partition(".")[0]
    if not topic_fault(host_label):
        values.setdefault("broker.broker_name", host_label)
    if machine.name_servers:
        parse = BROKER_KEYS["namesrvAddr"].kind.parse
        try:
            values.setdefault("broker.name_servers", parse(machine.name_servers))
        except ValueError:
            raise _bad_value("NAMESRV_ADDR", machine.name_servers, "environment", "namesrvAddr") from None


def _bad_value(key: str, text: str, origin: str, known: str) -> ConfigError:
    return ConfigError(f"{origin}: {key}={text}: must be {BROKER_KEYS[known].kind.allowed}")


def _read_keys(
    settings: Mapping[str, Setting],
    keys: Mapping[str, Key],
    inert: Mapping[str, str | None],
    program: str,
    other_keys: Mapping[str, Key],
) -> _Parts:
    parts = _Parts()
    for written, setting in settings.items():
        name = ALIASES.get(written, written)
        key = keys.get(name)
        if key is not None:
            value = _parse_value(written, key, setting)
            for target in key.fields:
                parts.values[target] = value
                parts.origins[target] = setting.origin
        elif name in REFUSED and program == "broker":
            _refuse_unserved(name, setting)
        elif name in inert:
            if setting.text != inert[name]:
                parts.inert.append(name)
        else:
            raise _unknown(name, setting, [*keys, *inert, *REFUSED], program, other_keys)
    return parts


def _parse_value(name: str, key: Key, setting: Setting) -> Any:
    try:
        return key.kind.parse(setting.text)
    except ValueError:
        text = "***" if key.kind.is_secret else setting.text
        raise ConfigError(f"{setting.origin}: {name}={text}: must be {key.kind.allowed}") from None


def _refuse_unserved(name: str, setting: Setting) -> None:
    served, reason = REFUSED[name]
    if setting.text.lower() != served.lower():
        allowed = f"only {served} is allowed" if served else "it must be empty"
        raise ConfigError(f"{setting.origin}: {name}={setting.text}: {reason}, {allowed}")


def _unknown(
    name: str, setting: Setting, known: list[str], program: str, other_keys: Mapping[str, Key]
) -> ConfigError:
    text = f"{setting.origin}: unknown {program} setting {name}"
    if name in other_keys:
        other = "name server" if program == "broker" else "broker"
        return ConfigError(f"{text}; it is a setting of the {other}")
    by_folded = {candidate.lower(): candidate for candidate in known}
    nearest = get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return ConfigError(f"{text}; did you mean {by_folded[nearest[0]]}?" if nearest else text)


def _build(options: type[T], part: str, parts: _Parts) -> T:
    """Builds the options of one component; an error that names a field is rewritten with the key that
    set it.
    """
    prefix = f"{part}."
    fields = {
        name.removeprefix(prefix): value for name, value in parts.values.items() if name.startswith(prefix)
    }
    try:
        return options(**fields)
    except ConfigError as error:
        names = _FIELD_NAME.findall(str(error))
        text = _FIELD_NAME.sub(lambda match: _KEY_OF_FIELD.get(prefix + match[0], match[0]), str(error))
        places = [parts.origins[prefix + name] for name in names if prefix + name in parts.origins]
        raise ConfigError(f"{places[0]}: {text}" if places else text) from None


# Relations between settings that no single component can check.
#
# Source: spec replication 3 (roles and ids), 5.2 (required acknowledgements).

ELECTED_HEARTBEAT_MS = 300
"""A master without controllers keeps its role through its slaves' reports, which answer its heartbeats."""


def check_broker(values: dict[str, Any], texts: Mapping[str, str]) -> tuple[str, ...]:
    """Checks and corrects a broker's settings; returns the corrections as sentences for the log. `values` is
    by `part.field` and may be changed.

    Raises:  ConfigError for settings that contradict each other.
    """
    _check_replica_counts(texts)
    return (*_fix_role(values), *_fix_pool(values, texts))


def _fix_role(values: dict[str, Any]) -> tuple[str, ...]:
    """Settles role and id: a master has id 0 whatever the file says, as in RocketMQ; a slave must have its
    own id.
    """
    if values.get("election.is_enabled", False):
        # The controllers decide; until they do, the broker is a slave.
        values["store.role"], values["broker.broker_id"] = BrokerRole.SLAVE, 1
        values["store.transient_pool_enable"] = False
        values.setdefault("replication.heartbeat_interval_ms", ELECTED_HEARTBEAT_MS)
        return ()
    role = values.get("store.role", BrokerRole.ASYNC_MASTER)
    broker_id = values.get("broker.broker_id", 0)
    if role is BrokerRole.SLAVE:
        if broker_id == 0:
            raise ConfigError(
                "brokerRole=SLAVE needs a brokerId above 0, one that no other slave of the group has"
            )
        return ()
    if broker_id == 0:
        return ()
    values["broker.broker_id"] = 0
    return (f"brokerId={broker_id} is taken as 0, because brokerRole={role.value} is a master's",)


def _fix_pool(values: dict[str, Any], texts: Mapping[str, str]) -> tuple[str, ...]:
    """Settles the transient pool, which is for masters that answer before the message is on disk (spec store
    11).
    """
    if not values.get("store.transient_pool_enable", False):
        return ()
    if values.get("store.flush_mode") is FlushMode.SYNC_FLUSH:
        reason = "with flushDiskType=SYNC_FLUSH each send waits for the disk"
    elif texts.get("writeWithoutMmap", "").lower() == "true":
        reason = "writeWithoutMmap=true rules it out"
    elif values.get("store.role") is BrokerRole.SLAVE:
        return ("transientStorePoolEnable=true has no effect while the broker is a slave",)
    else:
        return ()
    values["store.transient_pool_enable"] = False
    return (f"transientStorePoolEnable=true is taken as false: {reason}",)


def _check_replica_counts(texts: Mapping[str, str]) -> None:
    needed = int(texts.get("inSyncReplicas", "1"))
    if "totalReplicas" in texts and needed > int(texts["totalReplicas"]):
        raise ConfigError(
            f"inSyncReplicas={needed} can never be reached with totalReplicas={texts['totalReplicas']}"
        )
    is_elected = texts.get("enableControllerMode", "").lower() == "true"  # the size of the set counts there
    if "minInSyncReplicas" in texts and not is_elected and int(texts["minInSyncReplicas"]) > max(needed, 1):
        raise ConfigError(
            f"minInSyncReplicas={texts['minInSyncReplicas']} must not be above inSyncReplicas={needed}"
        )
