"""The options of a controller. The keys and defaults are RocketMQ's where it has the option."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandemmq.consensus.core.options import RaftOptions
from tandemmq.errors import ConfigError
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.setting_kinds import check_ranges, option_keys, setting
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.options import PLAIN, TlsOptions, parse_address
from tandemmq.telemetry.export_options import ExportOptions

HOME: Final = Path(os.path.expanduser("~"))
STORE_PATH: Final = HOME / "DLedgerController"
CONFIG_STORE_PATH: Final = HOME / "controller" / "controller.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions(ExportOptions):
    """Settings of one controller (spec controller 8)."""

    group: str = setting("controllerDLegerGroup", "DefaultController", kinds.TEXT)
    peers: str = setting("controllerDLegerPeers", "n0-127.0.0.1:9878", kinds.TEXT)
    """`n0-host:port;n1-host:port`: the initial controllers of the group."""
    self_id: str = setting("controllerDLegerSelfId", "n0", kinds.TEXT)
    """The name of this controller among the peers. It listens on the port of its entry."""
    joins: bool = setting("controllerJoin", False)  # ours
    """True if the controller starts with an empty store and waits until the group adds it; `peers` then lists
    it and the others.
    """
    listen_host: str = setting("bindAddress", "0.0.0.0", kinds.IP)
    store_path: Path = setting("controllerStorePath", STORE_PATH, kinds.DIRECTORY)
    config_store_path: Path = setting("configStorePath", CONFIG_STORE_PATH, kinds.FILE)
    """The file in which changes by UPDATE_CONTROLLER_CONFIG are stored."""
    config_black_list: str = setting("configBlackList", "configBlackList;configStorePath", kinds.TEXT)
    scan_inactive_master_ms: int = setting("scanInactiveMasterInterval", 500)
    """The interval of the scan for groups without a living master. RocketMQ: 5000."""
    elects_unclean_master: bool = setting("enableElectUncleanMaster", False)
    """True if a broker outside the SyncStateSet may become master when no member is alive."""
    notifies_brokers: bool = setting("notifyBrokerRoleChanged", True)
    raft_heartbeat_ms: int = setting("raftHeartbeatMillis", 100)  # ours
    raft_election_timeout_ms: int = setting("raftElectionTimeoutMillis", 500)  # ours
    snapshot_entries: int = setting("snapshotEntries", 1_000)  # ours
    shared_secret: str = setting("controllerSharedSecret", "", kinds.SECRET)  # ours
    """The secret that controllers prove to each other, and brokers and tools to them. Empty: only the names
    of the peers are compared.
    """
    admits_unsigned: bool = setting("controllerAdmitUnsigned", False)  # ours
    """True if unsigned requests are served despite a secret, for the time of an upgrade."""
    weak_signatures: bool = setting("weakSignatureEnable", True)  # ours
    """True if the signatures of RocketMQ's brokers and tools are accepted (protocol.signature)."""

    def __post_init__(self) -> None:
        peers = self.peer_addresses
        if self.self_id not in peers:
            raise ConfigError(
                f"controllerDLegerSelfId: {self.self_id} is not among the peers {', '.join(sorted(peers))}"
            )
        if len(peers) % 2 == 0 and not self.joins:
            raise ConfigError(
                f"controllerDLegerPeers: {len(peers)} controllers tolerate no more failures than"
                f" {len(peers) - 1}; configure 1, 3 or 5"
            )
        check_ranges(self)
        _ = self.raft

    @property
    def peer_addresses(self) -> dict[str, str]:
        """The controllers' addresses by name.

        Raises:  ConfigError quoting the entry that cannot be read.
        """
        peers: dict[str, str] = {}
        for text in filter(None, (part.strip() for part in self.peers.split(";"))):
            name, dash, address = text.partition("-")
            if not dash or not name:
                raise ConfigError(f"controllerDLegerPeers: {text!r} is not like n0-host:port")
            parse_address(address)
            if name in peers:
                raise ConfigError(f"controllerDLegerPeers: {name} is listed twice")
            peers[name] = address
        return peers

    @property
    def raft(self) -> RaftOptions:
        return RaftOptions(
            joins=self.joins,
            snapshot_entries=self.snapshot_entries,
            heartbeat_ms=self.raft_heartbeat_ms,
            election_timeout_ms=self.raft_election_timeout_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """All options of a controller. `inert` contains the given keys that have no effect here."""

    options: ControllerOptions
    tls: TlsOptions = PLAIN
    credentials: Credentials | None = None
    """innerClientAuthenticationCredentials: they sign the controller's messages to brokers, and are an
    account of brokers and tools.
    """
    inert: tuple[str, ...] = ()


FIXED_KEYS: Final = frozenset(
    {
        *option_keys(ExportOptions),
        "configBlackList",
        "configStorePath",
        "rocketmqHome",
        "bindAddress",
        "controllerDLegerGroup",
        "controllerDLegerPeers",
        "controllerDLegerSelfId",
        "controllerJoin",
        "controllerStorePath",
        "raftHeartbeatMillis",
        "raftElectionTimeoutMillis",
        "snapshotEntries",
        "controllerSharedSecret",
        "controllerAdmitUnsigned",
        "weakSignatureEnable",
    }
)
"""Keys that no request changes: the identity, addresses and peers of the controller, and the settings of
their consensus.
"""

CHANGEABLE_KEYS: Final = frozenset(option_keys(ControllerOptions)) - FIXED_KEYS
