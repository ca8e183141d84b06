"""The running configuration of a server and its requests: 318 and 319 of name servers (spec nameserver 10),
1009 and 1010 of controllers (spec controller 2.14).

Options are a dataclass whose fields have RocketMQ's keys in their metadata. A change is written to the file
of configStorePath, whose other lines are unchanged, before it takes effect. If the file cannot be written,
the change holds until the next start, and the answer reports that. Idle times take effect only at the next
start; requests cannot change addresses and paths.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import Field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tandemmq.errors import ConfigError, NotPermitted, RequestRejected
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties_file import Setting, edit_properties, parse_properties
from tandemmq.protocol.setting_kinds import ValueKind, option_keys
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


class LiveOptions(Protocol):
    """Options that can be stored and changed."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def config_store_path(self) -> Path: ...

    @property
    def config_black_list(self) -> str: ...


Options = TypeVar("Options", bound=LiveOptions)


class Settings(Generic[Options]):
    """The changeable options. `options` is the present value; read it again at each use."""

    def __init__(self, options: Options, *, fixed_keys: frozenset[str], event: str, disk: Disk) -> None:
        """Creates the settings. Requests never change `fixed_keys`; `event` is logged with the
        changed keys.
        """
        self.options = options
        self._fixed_keys = fixed_keys
        self._event = event
        self._disk = disk
        self._writing = asyncio.Lock()
        self._unsaved: dict[str, str] = {}

    def handle_get(self, channel: Channel, command: Command) -> Command:
        """Answers GET_NAMESRV_CONFIG (319) and GET_CONTROLLER_CONFIG (1010) with properties text."""
        return command.reply(body=render_options(self.options))

    async def handle_update(self, channel: Channel, command: Command) -> Command:
        """Applies UPDATE_NAMESRV_CONFIG (318) or UPDATE_CONTROLLER_CONFIG (1009), all of it or nothing.

        The request is answered once the change is on disk. If the change cannot be written, a remark in the
        answer says that the change is in effect only until the next start.

        Raises:  NotPermitted, RequestRejected with the reason.
        """
        remark = None
        try:
            settings = parse_properties(bytes(command.body), "the request")
            async with self._writing:
                changed = change_options(self.options, settings, self._fixed_keys)
                if changed != self.options:
                    known = option_keys(type(self.options))
                    self._unsaved |= {key: one.text for key, one in settings.items() if key in known}
                    path = changed.config_store_path
                    remark = await save_changes(self._disk, path, self._unsaved, creates=True)
                    self.options = changed
                    log.info(self._event, extra={"keys": sorted(settings)})
        except ConfigError as error:
            raise RequestRejected(str(error)) from None
        return command.reply(remark=remark)


async def save_changes(
    disk: Disk, path: Path, unsaved: dict[str, str], *, creates: bool = False
) -> str | None:
    """Writes the changes to the lines of the file and forgets them. Returns the reason if they are not in the
    file, None on success. `creates`: a missing file is made.
    """
    try:
        before = b"" if creates and not disk.exists(path) else disk.read_bytes(path)
        data = edit_properties(before, unsaved)
        await disk.offload(partial(disk.write_atomically, path, data, keep_backup=True))
    except OSError as error:
        reason = error.strerror or str(error)
        log.warning(events.CONFIG_NOT_SAVED, extra={"path": path, "reason": reason, "keys": sorted(unsaved)})
        return f"it holds until the next start: {path.name} cannot be written: {reason}"
    unsaved.clear()
    return None


def change_options(options: Options, settings: Mapping[str, Setting], fixed_keys: frozenset[str]) -> Options:
    """Returns the options with the named settings changed; unknown keys are ignored.

    Raises:  NotPermitted for a key that must not be changed; ConfigError naming one with an invalid value.
    """
    black_list = fixed_keys | {key.strip() for key in options.config_black_list.split(";")}
    for key in settings:
        if key in black_list:
            raise NotPermitted(f"{key} cannot be changed by a request")
    known = option_keys(type(options))
    values: dict[str, Any] = {
        known[key].name: _parse_value(key, setting.text, known[key].metadata["kind"])
        for key, setting in settings.items()
        if key in known
    }
    return replace(options, **values)


def render_options(options: LiveOptions) -> bytes:
    """Returns all settings except secrets as properties text, sorted by key, UTF-8."""
    lines = {
        key: _render_value(getattr(options, option.name))
        for key, option in option_keys(type(options)).items()
        if option.repr
    }
    return "".join(f"{key}={value}\n" for key, value in sorted(lines.items())).encode()


def _parse_value(key: str, text: str, kind: ValueKind) -> Any:
    try:
        return kind.parse(text)
    except ValueError:
        raise ConfigError(f"{key} must be {kind.allowed}, not {text!r}") from None


def _render_value(value: bool | int | str | Path | Enum) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace("\\", "\\\\")
