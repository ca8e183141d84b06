"""The settings of a name server, with RocketMQ's defaults and its key beside each field."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.errors import ConfigError
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.networks import AddressRanges, normalize_address, parse_ranges, split_pairs
from tandemmq.protocol.setting_kinds import check_ranges, option_keys, setting
from tandemmq.remoting.options import parse_address
from tandemmq.runtime.ports import Address
from tandemmq.telemetry.export_options import ExportOptions

HOME: Final = Path(os.path.expanduser("~")) / "namesrv"
KV_CONFIG_PATH: Final = HOME / "kvConfig.json"
CONFIG_STORE_PATH: Final = HOME / "namesrv.properties"
FALLBACKS: Final = ("registered", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerOptions(ExportOptions):
    """Settings of one name server (spec nameserver 10)."""

    listen_host: str = setting("bindAddress", "0.0.0.0", kinds.IP)
    listen_port: int = setting("listenPort", 9876, kinds.PORT)
    """The port to listen on; 0 picks a free one."""
    kv_config_path: Path = setting("kvConfigPath", KV_CONFIG_PATH, kinds.FILE)
    config_store_path: Path = setting("configStorePath", CONFIG_STORE_PATH, kinds.FILE)
    """The file in which UPDATE_NAMESRV_CONFIG saves its changes."""
    scan_period_ms: int = setting("scanNotActiveBrokerInterval", 5_000)
    idle_close_s: int = setting("serverChannelMaxIdleTimeSeconds", 120)
    order_message_enable: bool = setting("orderMessageEnable", False)
    """True if route answers include the fixed queue list of ordered topics."""
    return_order_topics: bool = setting("returnOrderTopicConfigToBroker", True)
    """True if answers to registrations include that list."""
    all_topic_list_enable: bool = setting("enableAllTopicList", True)
    topic_list_enable: bool = setting("enableTopicList", True)
    wait_for_service: bool = setting("needWaitForService", False)
    wait_for_service_s: int = setting("waitSecondsForService", 45)
    """The time in seconds after the start for which route queries are rejected, with `wait_for_service`."""
    delete_topics_by_registration: bool = setting("deleteTopicWithBrokerRegistration", False)
    """True if a master's registration removes the topics that it does not list."""
    acting_master_enable: bool = setting("supportActingMaster", False)
    """True if a slave may be shown as master while there is none (spec nameserver 9)."""
    notify_min_id_change: bool = setting("notifyMinBrokerIdChanged", False)
    """True if the brokers of a name are notified when the one with the smallest id comes or goes (spec
    nameserver 9).
    """
    network_listeners: str = setting("networkListeners", "", kinds.OPTIONAL_TEXT)
    """Ours: further listeners, `NAME=port` or `NAME=host:port`, separated by `;`: their clients get the
    addresses of that network (spec addresses 5).
    """
    client_networks: str = setting("clientNetworks", "", kinds.OPTIONAL_TEXT)
    """Ours: the networks of clients by address, `NAME=10.0.0.0/8,fd00::/8;NAME=...`, longest prefix first."""
    network_fallback: str = setting("networkFallback", "registered", kinds.words(*FALLBACKS))
    """Ours: the answer about a broker without an address in the asker's network: `registered` or `drop`."""
    config_black_list: str = setting(
        "configBlackList", "configBlackList;configStorePath;kvConfigPath", kinds.TEXT
    )
    """The keys that UPDATE_NAMESRV_CONFIG must not change, joined by `;`; the two paths can never be
    changed.
    """

    def __post_init__(self) -> None:
        check_ranges(self)
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


FIXED_KEYS: Final = frozenset(
    {
        *option_keys(ExportOptions),
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

CHANGEABLE_KEYS: Final = frozenset(option_keys(NameServerOptions)) - FIXED_KEYS
