"""Reads the record bytes of one range of a queue, from any replica that has them.

Brokers limit every answer (32 messages or 256 KiB by default), so a reader that waited for each answer would
mostly wait. A range is read through *lanes*: several pulls for consecutive pieces are in flight at once, and
the rest of a piece whose answer was short is requested again. The bytes are returned unchanged, in queue
order.

Replicas: `readFrom` decides the order in which they are asked. A replica that does not answer or lacks the
range is skipped. After a round without progress the reader pauses, each time twice as long. A slave may be
behind, so only an answer of the master proves that messages are lost.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemmq.errors import BrokerUnreachable, RemoteProtocolError, RequestRejected
from tandemmq.protocol import rejections
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record_layout import RecordOutcome
from tandemmq.protocol.record_scan import Boundaries, read_columns, scan_boundaries
from tandemmq.protocol.requests.consume import PullResponse
from tandemmq.spark.metadata import Bounds, QueriedCluster, make_pull, order_replicas
from tandemmq.spark.offsets import OffsetRange, render_queues
from tandemmq.spark.options import ReadPreference, SourceOptions
from tandemmq.spark.resolve import report_gone, report_loss
from tandemmq.spark.wire import POOL, UNREACHABLE, WireConnection, wait_before
from tandemmq.telemetry import events
from tandemmq.units import MASTER_ID, MIB, Buffer

log = logging.getLogger(__name__)

LANES_MAX = 16
IN_FLIGHT_BYTES = 16 * MIB
BULK_BYTES = 4 * MIB
"""The largest answer that we request from a TandemMQ broker; other brokers ignore the field and keep their
limits.
"""
GROW_AFTER = 64
"""The number of complete answers in a row after which larger pulls are tried again."""

SETTLE_AFTER = 64
"""The number of answers for which suggestions are ignored after one was followed, so that the reader does not
flap between replicas.
"""

_ANSWERED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of one queue, concatenated; `positions` are their starts in `data`."""

    data: Buffer
    positions: NDArray[np.int64]


class FetchEnd(Enum):
    """The reason why reading from one replica ended."""

    DONE = "the range is read"
    NOT_HERE = "this replica lacks the next message"
    SWITCH = "the broker suggests another replica"


@dataclass(slots=True)
class ReadTally:
    """Counters of one task's reading.

    `retries`: the number of times that a replica did not answer, rejected the pull, or lacked the next
    message.
    """

    size_bytes: int = 0
    answers: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class _Lane:
    """A pull in flight for the queue offsets `[begin, stop)`."""

    opaque: int
    begin: int
    stop: int


class RangeReader:
    """Reads one range once; `position` is the next queue offset to deliver."""

    def __init__(
        self,
        item: OffsetRange,
        replicas: Mapping[int, str],
        options: SourceOptions,
        tally: ReadTally | None = None,
    ) -> None:
        self.position = item.begin
        self._tally = ReadTally() if tally is None else tally
        self._queue = item.queue
        self._end = item.end
        self._replicas = dict(replicas)
        self._options = options
        self._preferred = MASTER_ID
        self._settling = 0
        self._step = options.pull_batch_size
        self._is_probed = False
        self._answer_bytes = 1
        self._whole_answers = 0
        self._master_answer: PullResponse | None = None

    def read(self) -> Iterator[Chunk]:
        """Yields all records of the range, in order.

        Raises:  OffsetOutOfRange if messages are lost, unless failOnDataLoss is false; the last error of a
                 broker if no replica returns the rest of the range in time.
        """
        attempt = 0
        while self.position < self._end:
            before = self.position
            failure = yield from self._try_replicas()
            if self.position == before and failure is None:
                self._skip_deleted()
            if self.position > before:
                attempt = 0
                continue
            attempt += 1
            if attempt > self._options.retry_count:
                self._end_read(failure)
                continue
            wait_before(attempt, self._options.retry_interval_s)
            self._refresh_replicas()

    def _try_replicas(self) -> Generator[Chunk, None, Exception | None]:
        """Tries every replica once; returns the last failure, or None if all of them answered."""
        failure: Exception | None = None
        self._master_answer = None
        if not self._replicas:
            return BrokerUnreachable(f"no replica of broker {self._queue.broker} is registered")
        for broker_id in self._replica_order():
            try:
                with POOL.borrow(self._replicas[broker_id], self._options.security) as connection:
                    verdict = yield from self._read_from(connection, broker_id)
            except UNREACHABLE as error:
                failure = error
            except RequestRejected as error:
                if broker_id == MASTER_ID and not error.retriable:
                    if not self._skip_gone():
                        raise
                    return None
                failure = error
            else:
                if verdict is not FetchEnd.NOT_HERE:
                    return None
            self._tally.retries += 1
        return failure

    def _read_from(self, connection: WireConnection, broker_id: int) -> Generator[Chunk, None, FetchEnd]:
        """Reads from one replica until the range ends or the replica stops delivering."""
        lanes: deque[_Lane] = deque()
        while self.position < self._end:
            self._fill(connection, lanes)
            lane = lanes.popleft()
            answer = connection.receive(lane.opaque, time.monotonic() + self._options.pull_timeout_s)
            header = _decode_answer(answer)
            self._tally.answers += 1
            self._tally.size_bytes += len(answer.body)
            if broker_id == MASTER_ID:
                self._master_answer = header
            if answer.code == ResponseCode.SUCCESS:
                yield self._accept_answer(answer, header, lane)
            elif answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and header.next_offset > lane.begin:
                self._skip_unmatched(header, lane)
            else:
                return FetchEnd.NOT_HERE
            self._refill_gap(connection, lanes, lane.stop)
            if self._is_redirected(header, broker_id):
                return FetchEnd.SWITCH
        return FetchEnd.DONE

    def _fill(self, connection: WireConnection, lanes: deque[_Lane]) -> None:
        """Sends further pulls; only one until an answer has shown the size of this broker's answers."""
        width = min(LANES_MAX, max(2, IN_FLIGHT_BYTES // self._answer_bytes)) if self._is_probed else 1
        if len(lanes) > width // 2:
            # Refill when half of the lanes are free: one system call for eight requests instead of eight.
            return
        begin = lanes[-1].stop if lanes else self.position
        stop = min(begin + (width - len(lanes)) * self._step, self._end)
        lanes.extend(self._send(connection, begin, stop))

    def _refill_gap(self, connection: WireConnection, lanes: deque[_Lane], stop: int) -> None:
        """Requests again the part that a short answer left out before the next lane."""
        if not lanes or self.position >= stop:
            return
        lanes.extendleft(reversed(self._send(connection, self.position, stop)))

    def _send(self, connection: WireConnection, begin: int, stop: int) -> list[_Lane]:
        """Sends pulls for `[begin, stop)`, divided into steps."""
        bounds = [(at, min(at + self._step, stop)) for at in range(begin, stop, self._step)]
        numbers = connection.send([self._make_pull(at, end) for at, end in bounds])
        return [_Lane(number, at, end) for number, (at, end) in zip(numbers, bounds, strict=True)]

    def _make_pull(self, begin: int, stop: int) -> Command:
        header = make_pull(self._options, self._queue, begin, stop - begin, is_filtered=True, bulk=BULK_BYTES)
        return Command.request(RequestCode.PULL_MESSAGE, header)

    def _accept_answer(self, answer: Command, header: PullResponse, lane: _Lane) -> Chunk:
        """Returns the records of an answer that belong to its lane, and advances the position behind them."""
        data, boundaries = _find_records(answer.body, header)
        self._answer_bytes = max(self._answer_bytes * 3 // 4, len(data), 1)
        if boundaries.end != len(data) or header.next_offset <= lane.begin:
            raise RemoteProtocolError(
                f"{render_queues([self._queue])}: the answer for queue offset {lane.begin} is not whole "
                f"records up to {header.next_offset}"
            )
        positions = boundaries.positions
        reached = min(header.next_offset, lane.stop)
        if header.next_offset > lane.stop:
            # Only a filtered pull goes beyond the requested end; the next lane returns the same records.
            kept = int(np.searchsorted(read_columns(data, boundaries).queue_offset, lane.stop))
            data = data[: int(positions[kept])] if kept < len(positions) else data
            positions = positions[:kept]
        if not self._options.is_filtered and len(positions) != reached - lane.begin:
            self._report_loss(lane.begin, header, reached - len(positions))
        self._learn_step(header, lane)
        self.position = reached
        return Chunk(data, positions)

    def _learn_step(self, header: PullResponse, lane: _Lane) -> None:
        """Adapts the size of the next lanes to the number of offsets that one answer of this broker
        covers.
        """
        self._is_probed = True
        covered, asked = header.next_offset - lane.begin, lane.stop - lane.begin
        if covered < asked:
            self._step = covered
            self._whole_answers = 0
            return
        self._whole_answers += 1
        # Only a filtered pull covers more than was requested: the step was too small.
        if covered > asked or self._whole_answers >= GROW_AFTER:
            self._step = min(2 * self._step, self._options.pull_batch_size)
            self._whole_answers = 0

    def _skip_unmatched(self, header: PullResponse, lane: _Lane) -> None:
        """Advances over messages that do not match the filter; without a filter they are lost."""
        reached = min(header.next_offset, lane.stop)
        if not self._options.is_filtered:
            self._report_loss(lane.begin, header, reached)
        self._learn_step(header, lane)
        self.position = reached

    def _is_redirected(self, header: PullResponse, broker_id: int) -> bool:
        self._settling = max(0, self._settling - 1)
        suggested = header.suggested_broker_id
        if self._options.read_from is not ReadPreference.SUGGESTED or suggested == broker_id:
            return False
        if suggested not in self._replicas or self._settling:
            return False
        self._preferred = suggested
        self._settling = SETTLE_AFTER
        return True

    def _replica_order(self) -> list[int]:
        """Returns the broker ids in the order in which this round asks them."""
        is_slave_first = self._options.read_from is ReadPreference.PREFER_SLAVE
        first = None if is_slave_first else self._preferred
        ordered = order_replicas(self._replicas, is_slave_first, first=first)
        return [broker_id for broker_id, _ in ordered]

    def _skip_deleted(self) -> None:
        """Skips messages below the master's oldest one after a round in which all replicas answered: they are
        deleted.
        """
        from_master = self._master_answer
        if from_master is None or self.position >= from_master.min_offset:
            return
        self._report_loss(self.position, from_master, from_master.min_offset)
        self.position = min(from_master.min_offset, self._end)

    def _end_read(self, failure: Exception | None) -> None:
        """Ends the read after too many rounds without progress: with an error, or, if losses are allowed, at
        the end of the range.
        """
        from_master = self._master_answer
        if failure is None and from_master is not None:
            self._report_loss(self.position, from_master, self._end)
            self.position = self._end
            return
        asked = f"{render_queues([self._queue])}, queue offsets [{self.position}, {self._end})"
        raise BrokerUnreachable(
            f"no replica returned {asked}: {failure or 'all of them lack it'}"
        ) from failure

    def _report_loss(self, position: int, seen: PullResponse, resumes_at: int) -> None:
        """Reports messages that the broker of `seen` no longer has; see `report_loss`."""
        bounds = Bounds(seen.min_offset, seen.max_offset, is_master=True)
        report_loss(self._queue, position, bounds, self._options, resumes_at=resumes_at)

    def _skip_gone(self) -> bool:
        """Returns True, at the end of the range, if the queue is gone and lost messages are allowed.

        Raises:  OffsetOutOfRange naming the lost messages, unless failOnDataLoss is false.
        """
        if not QueriedCluster(self._options).find_gone([self._queue]):
            return False
        report_gone({self._queue: (self.position, self._end)}, self._options)
        self.position = self._end
        return True

    def _refresh_replicas(self) -> None:
        """Asks the name servers for the queue's broker; if they list none, checks whether the queue is
        gone.
        """
        try:
            found = QueriedCluster(self._options).locate(self._queue)
            if not found:
                self._skip_gone()
        except UNREACHABLE as error:
            log.debug(events.ROUTE_UNREACHABLE, extra={"error": str(error)})
            return
        self._replicas = dict(found) or self._replicas


def _decode_answer(answer: Command) -> PullResponse:
    if answer.code not in _ANSWERED:
        raise rejections.to_error(answer)
    return answer.decode(PullResponse)


def _find_records(body: Buffer, header: PullResponse) -> tuple[Buffer, Boundaries]:
    """Returns the records of an answer and their positions: from the sizes in the answer, else by
    scanning.
    """
    trailer_bytes = header.sizes_bytes or 0
    if not trailer_bytes:
        return body, scan_boundaries(body)
    end = len(body) - trailer_bytes
    if trailer_bytes % 4 or end < 4:
        raise RemoteProtocolError(
            f"{trailer_bytes} of {len(body)} bytes of an answer cannot be sizes of records"
        )
    sizes = np.frombuffer(body, dtype=">i4", offset=end).astype(np.int64)
    ends = np.cumsum(sizes)
    positions = ends - sizes
    # Every record begins with its size, so the reported sizes can be verified.
    words: NDArray[Any] = np.ndarray((end - 3,), dtype=">i4", buffer=body, strides=(1,))
    if ends[-1] != end or sizes.min() < 4 or (words[positions] != sizes).any():
        raise RemoteProtocolError("the sizes in an answer are not those of its records")
    boundaries = Boundaries(positions=positions, end=end, outcome=RecordOutcome.END)
    return memoryview(body)[:end], boundaries
