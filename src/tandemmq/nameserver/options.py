"""The settings of a name server, with RocketMQ's defaults and its key beside each field."""

from __future__ import annotations

import os
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any, Final

from tandemmq.errors import ConfigError
from tandemmq.protocol.networks import AddressRanges, normalize_address, parse_ranges, split_pairs
from tandemmq.remoting import settings
from tandemmq.remoting.options import parse_address
from tandemmq.runtime.ports import Address
from tandemmq.telemetry.export_options import ExportOptions

HOME: Final = Path(os.path.expanduser("~")) / "namesrv"
KV_CONFIG_PATH: Final = HOME / "kvConfig.json"
CONFIG_STORE_PATH: Final = HOME / "namesrv.properties"
FALLBACKS: Final = ("registered", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerOptions(ExportOptions):
    """Settings of one name server (spec nameserver 10). `option_keys` maps RocketMQ's keys to the fields."""

    listen_host: str = field(default="0.0.0.0", metadata={"key": "bindAddress"})
    listen_port: int = field(default=9876, metadata={"key": "listenPort"})
    """The port to listen on; 0 picks a free one."""
    kv_config_path: Path = field(default=KV_CONFIG_PATH, metadata={"key": "kvConfigPath"})
    config_store_path: Path = field(default=CONFIG_STORE_PATH, metadata={"key": "configStorePath"})
    """The file in which UPDATE_NAMESRV_CONFIG saves its changes."""
    scan_period_ms: int = field(default=5_000, metadata={"key": "scanNotActiveBrokerInterval"})
    idle_close_s: int = field(default=120, metadata={"key": "serverChannelMaxIdleTimeSeconds"})
    order_message_enable: bool = field(default=False, metadata={"key": "orderMessageEnable"})
    """True if route answers include the fixed queue list of ordered topics."""
    return_order_topics: bool = field(default=True, metadata={"key": "returnOrderTopicConfigToBroker"})
    """True if answers to registrations include that list."""
    all_topic_list_enable: bool = field(default=True, metadata={"key": "enableAllTopicList"})
    topic_list_enable: bool = field(default=True, metadata={"key": "enableTopicList"})
    wait_for_service: bool = field(default=False, metadata={"key": "needWaitForService"})
    wait_for_service_s: int = field(default=45, metadata={"key": "waitSecondsForService"})
    """The time in seconds after the start for which route queries are rejected, with `wait_for_service`."""
    delete_topics_by_registration: bool = field(
        default=False, metadata={"key": "deleteTopicWithBrokerRegistration"}
    )
    """True if a master's registration removes the topics that it does not list."""
    acting_master_enable: bool = field(default=False, metadata={"key": "supportActingMaster"})
    """True if a slave may be shown as master while there is none (spec nameserver 9)."""
    notify_min_id_change: bool = field(default=False, metadata={"key": "notifyMinBrokerIdChanged"})
    """True if the brokers of a name are notified when the one with the smallest id comes or goes (spec
    nameserver 9).
    """
    network_listeners: str = field(default="", metadata={"key": "networkListeners"})
    """Ours: further listeners, `NAME=port` or `NAME=host:port`, separated by `;`: their clients get the
    addresses of that network (spec addresses 5).
    """
    client_networks: str = field(default="", metadata={"key": "clientNetworks"})
    """Ours: the networks of clients by address, `NAME=10.0.0.0/8,fd00::/8;NAME=...`, longest prefix first."""
    network_fallback: str = field(default="registered", metadata={"key": "networkFallback"})
    """Ours: the answer about a broker without an address in the asker's network: `registered` or `drop`."""
    config_black_list: str = field(
        default="configBlackList;configStorePath;kvConfigPath", metadata={"key": "configBlackList"}
    )
    """The keys that UPDATE_NAMESRV_CONFIG must not change, joined by `;`; the two paths can never be
    changed.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listenPort must be within 0..65535, not {self.listen_port}")
        for key, option in option_keys().items():
            value = getattr(self, option.name)
            if option.name.endswith(("_ms", "_s")) and value <= 0:
                raise ConfigError(f"{key} must be positive, not {value}")
        if self.network_fallback not in FALLBACKS:
            raise ConfigError(f"networkFallback must be registered or drop, not {self.network_fallback!r}")
        for key, parse in (
            ("networkListeners", lambda: self.listener_networks),
            ("clientNetworks", lambda: self.client_ranges),
        ):
            try:
                parse()
            except ValueError as error:
                raise ConfigError(f"{key}: {error}") from None

    @property
    def client_ranges(self) -> AddressRanges:
        """The networks of clients by their addresses."""
        return parse_ranges(self.client_networks)

    @property
    def listener_networks(self) -> dict[str, list[Address]]:
        """The addresses of the further listeners by network."""
        listeners: dict[str, list[Address]] = {}
        for network, value in split_pairs(self.network_listeners):
            is_port = value.isascii() and value.isdigit() and int(value) <= 65535
            host, port = (
                (self.listen_host, int(value)) if is_port else parse_address(normalize_address(value))
            )
            listeners.setdefault(network, []).append((host, port))
        return listeners


def option_keys() -> dict[str, Field[Any]]:
    """Returns RocketMQ's key -> the field of `NameServerOptions` that it sets."""
    return settings.option_keys(NameServerOptions)


FIXED_KEYS: Final = frozenset(
    {
        *settings.option_keys(ExportOptions),
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
        "bindAddress",
        "listenPort",
        "networkListeners",
        "innerClientAuthenticationCredentials",
    }
)
"""The keys that no request can change: they determine what may be written and where, the listening address,
and the server's identity.
"""

CHANGEABLE_KEYS: Final = frozenset(option_keys()) - FIXED_KEYS
