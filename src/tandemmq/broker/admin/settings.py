"""Operators' changes to a running broker: settings, files on disk, and the location of the master.

`SettingsHandlers` serves GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25) and SET_COMMITLOG_READ_MODE
(2004), with RocketMQ's names of settings. `CleaningHandlers` deletes at once what retention would delete
later. `HaHandlers` serves notifications between replicas.
Only the settings in `CHANGEABLE` can be changed: numbers and switches that are read at each use, and the
addresses for clients of other networks. It contains no path, file, script, identity or secret, and
no address that the broker binds or dials, so that a request can never make the broker write or run something
elsewhere (CVE-2023-33246, CVE-2023-37582).
Source: spec remoting 8.6, spec semantics 16.3 and 23.1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import drop_or_reject, invalid
from tandemmq.broker.options import OPEN, AccessOptions, BrokerOptions
from tandemmq.errors import BadRequest, ConfigError, NotPermitted
from tandemmq.protocol.bodies.codec import DataVersion, encode_body
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties_file import Setting, parse_properties
from tandemmq.protocol.requests.admin import BrokerConfigResponse, ReadModeRequest
from tandemmq.protocol.requests.replica import (
    ExchangeHaInfoRequest,
    ExchangeHaInfoResponse,
    ResetMasterFlushedOffsetRequest,
)
from tandemmq.protocol.requests.route import MinBrokerIdChange
from tandemmq.protocol.setting_kinds import ValueKind, option_keys
from tandemmq.protocol.topic_names import is_dlq_topic, is_retry_topic, is_system_topic, render_delay_levels
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.settings import save_changes
from tandemmq.store.options import BrokerRole, StoreOptions
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

ADVERTISED_KEY: Final = "advertisedAddresses"


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """One setting of a broker: the part and the field that hold it, and the kind of its values. `is_live`: it
    can be changed while the broker runs.
    """

    part: str  # "broker", "store" or "access"
    field: str
    kind: ValueKind
    is_live: bool


SETTINGS: Final[Mapping[str, BrokerSetting]] = {
    key: BrokerSetting(part, one.name, one.metadata["kind"], one.metadata["live"])
    for part, options in (("broker", BrokerOptions), ("store", StoreOptions), ("access", AccessOptions))
    for key, one in option_keys(options).items()
}
CHANGEABLE: Final = {key: setting for key, setting in SETTINGS.items() if setting.is_live}


def parse_change(key: str, text: str) -> tuple[BrokerSetting, Any]:
    """Returns the setting and its new value. `key` must be in `CHANGEABLE`.

    Raises:  ConfigError naming the key and what is allowed.
    """
    change = CHANGEABLE[key]
    try:
        return change, change.kind.parse(text.strip())
    except ValueError:
        raise ConfigError(f"{key}={text[:64]}: must be {change.kind.allowed}") from None


def apply_changes(
    broker: BrokerOptions, store: StoreOptions, changes: Mapping[str, tuple[BrokerSetting, Any]]
) -> Callable[[], None]:
    """Returns a function that makes the changes; nothing changes before it is called.

    The options are values that all parts hold and read at each use. Only this function changes them, in place
    and all at once; no part sees a partial change between two awaits.

    Raises:  ConfigError when a new value contradicts another setting.
    """
    by_part: dict[str, dict[str, Any]] = {"broker": {}, "store": {}}
    for change, value in changes.values():
        by_part[change.part][change.field] = value
    replace(broker, **by_part["broker"])
    replace(store, **by_part["store"])

    def apply() -> None:
        for options, fields in ((broker, by_part["broker"]), (store, by_part["store"])):
            for name, value in fields.items():
                object.__setattr__(options, name, value)

    return apply


READ_AHEAD_KEY = "dataReadAheadEnable"
READ_MODES = {0: "true", 1: "false"}
"""The number in SET_COMMITLOG_READ_MODE -> the value of the key; RocketMQ's numbers are those of madvise."""
FIXED_KEYS = frozenset(("brokerConfigPath", "configBlackList", "rocketmqHome"))


class SettingsHandlers:
    """Shows the settings and changes those that may change while the broker runs.

    A change is stored in the broker's configuration file (`-c`); without one it lasts until the next start.
    `on_change` is called with the changed keys, after they took effect.
    """

    def __init__(self, core: BrokerCore, access: AccessOptions, *, register_soon: Callable[[], None]) -> None:
        self.core = core
        self.access = access
        self._register_soon = register_soon
        self._version = DataVersion(timestamp_ms=core.clock.now_ms())
        self._writing = asyncio.Lock()
        self._unsaved: dict[str, str] = {}

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """Handles GET_BROKER_CONFIG: returns Java properties text, sorted by key."""
        lines = [f"{key}={_escape(text)}" for key, text in sorted(self._texts().items())]
        version = encode_body(self._version).decode()
        return command.reply(0, BrokerConfigResponse(version=version), body="\n".join(lines).encode() + b"\n")

    async def handle_update(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_BROKER_CONFIG: makes all of the changes or none. A value that is already set is not
        a change.
        """
        try:
            wanted = parse_properties(bytes(command.body), "the request")
        except ConfigError as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        return command.reply(remark=await self._update(wanted, channel))

    async def handle_read_mode(self, channel: Channel, command: Command) -> Command:
        """Handles SET_COMMITLOG_READ_MODE (2004): an update of `dataReadAheadEnable` in the form that tools
        use.
        """
        mode = command.decode(ReadModeRequest).mode
        if mode not in READ_MODES:
            raise invalid(f"READ_AHEAD_MODE {mode} must be 0 (read ahead) or 1 (random)")
        wanted = {READ_AHEAD_KEY: Setting(READ_MODES[mode], "the request")}
        remark = await self._update(wanted, channel)
        done = f"{READ_AHEAD_KEY} is {READ_MODES[mode]} for all CommitLog files"
        return command.reply(remark=done if remark is None else f"{done}; {remark}")

    async def _update(self, wanted: Mapping[str, Setting], channel: Channel) -> str | None:
        """Makes the changes. Returns the remark for the successful answer, or None.

        Raises:  RequestRejected; nothing has changed then.
        """
        async with self._writing:
            changes = self._plan(wanted)
            if not changes:
                return None
            texts = {key: wanted[key].text.strip() for key in changes}
            remark = await self._change(changes, texts)
            log.info(events.BROKER_CONFIG_CHANGED, extra={"changes": texts, "peer": channel.peer})
            return remark

    def _plan(self, wanted: Mapping[str, Setting]) -> dict[str, tuple[Any, Any]]:
        """Returns the parsed changes. Raises NotPermitted or BadRequest for the first invalid one."""
        texts = self._texts()
        black_list = FIXED_KEYS | set(self.core.options.config_black_list)
        changes = {}
        for key, setting in wanted.items():
            if key in black_list:
                raise NotPermitted(f"{key[:64]} is in the configBlackList: no request changes it")
            if texts.get(key) == setting.text.strip():
                continue
            if key not in CHANGEABLE:
                raise NotPermitted(
                    f"{key[:64]} cannot be changed while the broker runs: set it in the configuration"
                    f" file and restart the broker; what can be changed: {', '.join(sorted(CHANGEABLE))}"
                )
            try:
                changes[key] = parse_change(key, setting.text)
            except ConfigError as error:
                raise invalid(str(error)) from None
        return changes

    async def _change(self, changes: Mapping[str, tuple[Any, Any]], texts: Mapping[str, str]) -> str | None:
        """Stores the changes in the file, then makes them. Returns the remark for the successful answer, or
        None.

        A file that cannot be written (a read-only mount, a full disk) does not block the change: an operator
        raising fileReservedTime or a limit in an emergency needs it at once. The next successful write
        includes the earlier changes.
        """
        try:
            apply = apply_changes(self.core.options, self.core.store.options, changes)
        except ConfigError as error:
            raise invalid(str(error)) from None
        remark = await self._save(texts)
        apply()
        self._version = self._version.next(self.core.clock.now_ms())
        self._update_parts(changes)
        return remark

    def _update_parts(self, changes: Collection[str]) -> None:
        """Updates objects that were built from a setting when the broker started."""
        core = self.core
        core.groups.is_auto_created = core.options.auto_create_group
        if READ_AHEAD_KEY in changes:
            core.store.set_read_ahead(core.store.options.read_ahead_enable)
        if "brokerPermission" in changes:
            # Name servers and the cached topic checks hold the old permission.
            core.topics.renew(core.clock.now_ms())
        if ADVERTISED_KEY in changes:
            self._register_soon()

    async def _save(self, texts: Mapping[str, str]) -> str | None:
        """Writes the changes to the file. Returns None, or the reason why they are not in the file."""
        path = self.core.options.config_path
        if path is None:
            return "it holds until the next start: there is no configuration file (-c)"
        self._unsaved |= texts
        return await save_changes(self.core.disk, path, self._unsaved)

    def _texts(self) -> dict[str, str]:
        store = self.core.store
        held = replace(store.options, role=store.assigned_role)
        return render_settings(self.core.options, held, self.access, is_elected=store.has_terms)


def render_settings(
    options: BrokerOptions,
    store_options: StoreOptions,
    access: AccessOptions = OPEN,
    *,
    is_elected: bool = False,
) -> dict[str, str]:
    """Returns everything that GET_BROKER_CONFIG shows, as text by RocketMQ key: all settings of these parts
    but secrets.
    """
    parts: dict[str, object] = {"broker": options, "store": store_options, "access": access}
    values: dict[str, object] = {
        key: getattr(parts[one.part], one.field) for key, one in SETTINGS.items() if not one.kind.is_secret
    }
    values |= {
        "enableControllerMode": is_elected,
        "brokerIP2": options.ha_advertised_host or options.advertised_host,
        "storePathCommitLog": store_options.log_dir,
        "messageDelayLevel": render_delay_levels(store_options.delay_levels_ms),
        "deleteWhen": ";".join(f"{hour:02d}" for hour in store_options.delete_at_hours),
    }
    return {key: _render(value) for key, value in values.items()}


def _render(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ";".join(value)
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value)))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


@dataclass(slots=True)
class CleaningHandlers:
    """Handles manual cleaning: 306 expired queue files, 316 queues of deleted topics, 329 expired log files.

    306 and 329 also run automatically. A queue keeps its numbering when all of its messages have expired.
    With RocketMQ's 306 it restarts at 0, and the offsets of its consumers are beyond its end.
    Source: spec remoting 8.6, spec store 19.
    """

    core: BrokerCore

    def handle_queues(self, channel: Channel, command: Command) -> Command:
        """Handles CLEAN_EXPIRED_CONSUMEQUEUE (306)."""
        self.core.store.cleaner.cut_tables()
        log.info(events.CLEANED_BY_HAND, extra={"what": "expired queue files", "peer": channel.peer})
        return command.reply()

    def handle_log(self, channel: Channel, command: Command) -> Command:
        """Handles DELETE_EXPIRED_COMMITLOG (329): deletes files older than fileReservedTime, at any hour."""
        count = self.core.store.cleaner.clean(at_any_hour=True)
        extra = {"what": "expired log files", "count": count, "peer": channel.peer}
        log.info(events.CLEANED_BY_HAND, extra=extra)
        return command.reply()

    async def handle_topics(self, channel: Channel, command: Command) -> Command:
        """Handles CLEAN_UNUSED_TOPIC (316): deletes the queues of topics missing from the table, and the
        groups' offsets in them. Retry and system topics stay.

        A slave deletes nothing: its table may lack a topic that its log already has, and its master reports
        deletions.
        """
        unused = {topic for topic, _ in self.core.store.queue_keys() if self._is_unused(topic)}
        await drop_or_reject(self.core.store, sorted(unused))
        for topic in unused:  # if the topic is created again, its queues begin at 0
            self.core.offsets.drop_topic(topic)
        extra = {"what": "queues of deleted topics", "count": len(unused), "peer": channel.peer}
        log.info(events.CLEANED_BY_HAND, extra=extra)
        return command.reply()

    def _is_unused(self, topic: str) -> bool:
        if self.core.store.role is BrokerRole.SLAVE:
            return False
        is_kept = is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)
        return not is_kept and self.core.topics.get(topic) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class HaHandlers:
    """Handles notifications between replicas about the location of the master: 905, 906, 908.

    A slave of TandemMQ obtains its master's addresses from its name servers only. A request with other
    addresses just makes the slave ask them at once, so no request can redirect a slave to a false master.
    `register_soon` makes a slave look up its master; `own_addresses` is (for requests, for replication).
    `first_end`: the end of the log when the broker started. `master_epoch`: set for an elected broker.
    Source: spec replication 7, spec nameserver 9.
    """

    is_slave: bool
    first_end: int
    own_addresses: Callable[[], tuple[str, str]]
    register_soon: Callable[[], None]
    master_epoch: int | None = None

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.handle_min_id_change,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.handle_exchange,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.handle_reset,
        }

    def handle_min_id_change(self, channel: Channel, command: Command) -> Command:
        """Handles NOTIFY_MIN_BROKER_ID_CHANGE (905) from a name server: the master came or went."""
        command.decode(MinBrokerIdChange)
        self._refresh_master()
        return command.reply()

    def handle_exchange(self, channel: Channel, command: Command) -> Command:
        """Handles EXCHANGE_BROKER_HA_INFO (906): a master returns its addresses; a slave has none to
        return.
        """
        header = command.decode(ExchangeHaInfoRequest)
        if header.master_ha_address is not None:
            self._refresh_master()
            return command.reply()
        if self.is_slave:
            return command.reply()
        address, ha_address = self.own_addresses()
        response = ExchangeHaInfoResponse(
            master_address=address, master_ha_address=ha_address, master_flushed_offset=self.first_end
        )
        fields = None if self.master_epoch is None else {"tmEpoch": str(self.master_epoch)}
        return command.reply(header=response, fields=fields)

    def handle_reset(self, channel: Channel, command: Command) -> Command:
        """Handles RESET_MASTER_FLUSH_OFFSET (908), without effect. RocketMQ's slaves remember an offset up to
        which their master had flushed; TandemMQ's compare their log with the master's instead.
        """
        command.decode(ResetMasterFlushedOffsetRequest)
        return command.reply(remark="no effect: slaves compare their log with the master's")

    def _refresh_master(self) -> None:
        if self.is_slave:
            self.register_soon()
