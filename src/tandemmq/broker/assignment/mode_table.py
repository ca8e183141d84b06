"""How groups consume topics, where that was set: messageRequestMode.json (spec semantics 20.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tandemmq.errors import Busy
from tandemmq.protocol.bodies.assignment import (
    RequestMode,
    RequestModes,
    decode_request_modes,
    encode_request_modes,
)


class ModeTable:
    """Modes by topic and group; `on_change` is called after each change.

    At a bound: a new entry is refused with Busy.
    """

    def __init__(self, *, count_max: int = 100_000) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._count_max = count_max
        self._modes: dict[str, dict[str, RequestMode]] = {}

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get(topic, {}).get(group)

    def put(self, mode: RequestMode) -> None:
        if self.get(mode.topic, mode.group) is None and self._count() >= self._count_max:
            raise Busy(f"[OVERLOAD] the broker keeps the modes of {self._count_max} topics and groups")
        self._modes.setdefault(mode.topic, {})[mode.group] = mode
        self._after_change()

    def snapshot(self) -> RequestModes:
        """The table's content, valid until the next change: encode it before anything else runs."""
        return RequestModes(modes=self._modes)

    def replace_all(self, modes: Mapping[str, Mapping[str, RequestMode]]) -> None:
        """Become the master's table."""
        self._modes = {topic: dict(groups) for topic, groups in modes.items()}
        self._after_change()

    def encode(self) -> bytes:
        """The content of messageRequestMode.json."""
        return encode_request_modes(self.snapshot())

    def load(self, data: bytes) -> None:
        """Take over the content of messageRequestMode.json."""
        self._modes = {topic: dict(groups) for topic, groups in decode_request_modes(data).modes.items()}

    def _count(self) -> int:
        return sum(map(len, self._modes.values()))

    def _after_change(self) -> None:
        for callback in self.on_change:
            callback()
