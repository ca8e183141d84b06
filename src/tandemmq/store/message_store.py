"""The one class of the store that other floors use: composes its parts, has no behaviour of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tandemmq.protocol.record import NewRecord
from tandemmq.runtime.ports import Buffer, Clock, Disk
from tandemmq.store.confirm import AckTable
from tandemmq.store.options import BrokerRole, StoreOptions
from tandemmq.store.outcomes import Appended, GetResult, PutStatus
from tandemmq.store.watermarks import Watermark

GET_BYTES_MAX = 134_217_728


class MessageStore:
    """A store directory that is open: append, read, follow its watermarks."""

    appended: Watermark
    flushed: Watermark
    confirmed: Watermark
    dispatched: Watermark
    acks: AckTable
    role: BrokerRole
    store_host: bytes  # may be set once the listening port is known
    options: StoreOptions

    @classmethod
    async def open(
        cls,
        options: StoreOptions,
        *,
        disk: Disk,
        clock: Clock,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> MessageStore:
        """The store, recovered and running."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def append(self, records: Sequence[NewRecord], on_done: Callable[[PutStatus], None]) -> Appended:
        raise NotImplementedError

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        raise NotImplementedError

    @property
    def min_log_offset(self) -> int:
        raise NotImplementedError

    @property
    def max_log_offset(self) -> int:
        raise NotImplementedError

    def log_view(self, log_offset: int, bytes_max: int) -> memoryview:
        raise NotImplementedError

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int = GET_BYTES_MAX,
        tag_hashes: frozenset[int] | None = None,
    ) -> GetResult:
        raise NotImplementedError

    def read_record(self, log_offset: int) -> memoryview | None:
        raise NotImplementedError

    def queue_min(self, topic: str, queue_id: int) -> int:
        raise NotImplementedError

    def queue_max(self, topic: str, queue_id: int) -> int:
        raise NotImplementedError

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        raise NotImplementedError

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        raise NotImplementedError

    def earliest_stored_at(self, topic: str, queue_id: int) -> int:
        raise NotImplementedError

    def query_keys(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        raise NotImplementedError

    def on_dispatch(self, callback: Callable[[Mapping[tuple[str, int], int]], None]) -> None:
        raise NotImplementedError

    def drop_topic(self, topic: str) -> None:
        raise NotImplementedError
