"""DataVersion: which state of a table this is (spec remoting 11.1)."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.command import Buffer


class DataVersion(Body, frozen=True, kw_only=True):
    """Equal only when all three are; any inequality counts as changed, also an older one."""

    counter: int = 0
    state_version: int = field(name="stateVersion", default=0)
    timestamp_ms: int = field(name="timestamp", default=0)

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(counter=self.counter + 1, state_version=self.state_version, timestamp_ms=now_ms)

    def of_term(self, epoch: int, now_ms: int) -> DataVersion:
        """The first version of an elected master's term."""
        return DataVersion(counter=self.counter + 1, state_version=epoch, timestamp_ms=now_ms)

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts older before newer."""
        return (self.state_version, self.counter, self.timestamp_ms)


def encode_data_version(version: DataVersion) -> bytes:
    return encode_body(version)


def decode_data_version(data: Buffer | str) -> DataVersion:
    return decode_body(data, DataVersion)
