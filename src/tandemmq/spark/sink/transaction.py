"""Commits or rolls back a transactional batch, on the driver.

Order of a commit: all half messages are stored; the decision is on disk; then the ends are sent. After the
decision the batch is never rolled back; a later commit of the same batch finishes it instead of sending it
again. Half messages of abandoned attempts are not ended; brokers discard them.

Ends are sent to all brokers concurrently, WINDOW of them in flight per broker. Each requests an answer, which
brokers of both kinds return (RocketMQ's own client does not wait for it). If the answer is missing or not a
success, it is unknown whether the message is committed. Before such an end is repeated, the key index is
queried, because RocketMQ would commit a second time. A committed message contains the offset of its half
message (PreparedTransactionOffset), so the result is exact. Blocking, for one thread.
Source:     spec semantics 17, spec remoting 9.7.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from tandemmq.client.route_cache import build_view
from tandemmq.errors import ConfigError, NoRoute, RequestRejected, TandemError
from tandemmq.protocol import rejections
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests.consume import QueryMessageRequest
from tandemmq.protocol.requests.send import EndTransactionRequest
from tandemmq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from tandemmq.spark.sink.halves import (
    Decision,
    DecisionFiles,
    Half,
    HalfPart,
    count_halves,
    decode_part,
    new_file_name,
    too_many_rows,
)
from tandemmq.spark.sink.options import SinkOptions
from tandemmq.spark.wire import POOL, UNREACHABLE, BlockingNameServers, WireConnection, wait_before
from tandemmq.telemetry import events

WINDOW = 256
CLOCK_SKEW_MS = 3_600_000
"""The maximum lag of a broker's clock behind the driver's at which a committed message is still found."""
_TRANSIENT = (*UNREACHABLE, NoRoute)
_NOT_FOUND = (ResponseCode.QUERY_NOT_FOUND, ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER)


class EndFailed(TandemError):
    """Some half messages of a batch could not be ended; their transaction is not rolled back."""


class _EndingLane:
    """The half messages to end on one broker for one topic; `window` contains those in progress."""

    def __init__(self, part: HalfPart, *, is_uncertain: bool) -> None:
        self.part = part
        self.window: list[Half] = []
        self.at = 0
        self.attempts = 0
        self.is_repeat = is_uncertain
        self.is_uncertain = is_uncertain
        self.loan: AbstractContextManager[WireConnection] | None = None
        self.connection: WireConnection | None = None
        self.numbers: list[int] = []
        self.deadline = 0.0

    @property
    def is_done(self) -> bool:
        return not self.window and self.at >= len(self.part)

    def fill(self) -> None:
        """Reads the next half messages if the window is empty."""
        if self.window:
            return
        self.window = self.part.read(self.at, WINDOW)
        self.at += len(self.window)
        self.is_uncertain = self.is_repeat

    def drop_connection(self, error: BaseException | None = None) -> None:
        loan, self.loan, self.connection, self.numbers = self.loan, None, None, []
        if loan is not None:
            loan.__exit__(None if error is None else type(error), error, None)


class Ender:
    """Ends the half messages of one batch. `since_ms`: no message of it was committed before this time, by
    the driver's clock.
    """

    def __init__(self, options: SinkOptions, group: str, since_ms: int) -> None:
        self._options = options
        self._group = group
        self._since_ms = max(0, since_ms - CLOCK_SKEW_MS)
        self._name_servers = BlockingNameServers(
            options.name_servers, options.send_timeout_s, options.security
        )

    def commit(self, parts: Sequence[HalfPart], *, is_repeat: bool) -> None:
        """Commits all half messages. `is_repeat`: some may be committed already.

        Raises:  EndFailed if one is not committed after all attempts.
        """
        lanes = [_EndingLane(part, is_uncertain=is_repeat) for part in parts if len(part)]
        try:
            while open_lanes := [lane for lane in lanes if not lane.is_done]:
                self._end_window(open_lanes, TRANSACTION_COMMIT)
        except (TandemError, ValueError) as error:
            left = sum(len(lane.part) - lane.at + len(lane.window) for lane in lanes)
            raise EndFailed(f"{left} of {count_halves(parts)} rows are not committed yet: {error}") from error
        finally:
            for lane in lanes:
                lane.drop_connection()

    def roll_back(self, parts: Sequence[HalfPart]) -> None:
        """Rolls back as many half messages as possible; a broker discards the others by itself, and consumers
        never see them.
        """
        for lane in [_EndingLane(part, is_uncertain=False) for part in parts if len(part)]:
            try:
                while not lane.is_done:
                    self._end_window([lane], TRANSACTION_ROLLBACK)
            except (TandemError, ValueError) as error:
                facts = {"topic": lane.part.topic, "broker": lane.part.broker_name, "error": str(error)}
                log.warning(events.TRANSACTION_END_UNSENT, extra=facts)
            finally:
                lane.drop_connection()

    def _end_window(self, lanes: Sequence[_EndingLane], decision: int) -> None:
        """Ends one window of every lane."""
        for lane in lanes:
            lane.fill()
            try:
                self._start(lane, decision)
            except (*_TRANSIENT, RequestRejected) as error:
                self._prepare_retry(lane, error)
        for lane in lanes:
            if lane.numbers:
                self._read_answers(lane, decision)

    def _start(self, lane: _EndingLane, decision: int) -> None:
        connection = lane.connection or self._connect(lane)
        if lane.is_uncertain and decision == TRANSACTION_COMMIT:
            self._drop_committed(lane, connection)
        lane.is_uncertain = False
        lane.deadline = time.monotonic() + self._options.send_timeout_s
        commands = [self._make_end(lane.part, half, decision) for half in lane.window]
        lane.numbers = connection.send(commands)

    def _read_answers(self, lane: _EndingLane, decision: int) -> None:
        """Reads the answers; half messages that are not ended stay in the window."""
        assert lane.connection is not None
        numbers, lane.numbers = lane.numbers, []
        left: list[Half] = []
        failure: Exception | None = None
        for place, number in enumerate(numbers):
            try:
                answer = lane.connection.receive(number, lane.deadline)
            except UNREACHABLE as error:
                left += lane.window[place:]
                failure = error
                break
            if decision == TRANSACTION_COMMIT and answer.code != ResponseCode.SUCCESS:
                left.append(lane.window[place])
                failure = rejections.to_error(answer)
        has_moved = len(left) < len(lane.window)
        lane.window = left
        if has_moved:
            lane.attempts = 0
        if failure is not None:
            self._prepare_retry(lane, failure)

    def _prepare_retry(self, lane: _EndingLane, error: Exception) -> None:
        """Prepares a retry.

        Raises:  `error` if no attempt is left.
        """
        lane.drop_connection(error)
        lane.is_uncertain = True
        lane.attempts += 1
        if lane.attempts > self._options.retry_count:
            raise error
        wait_before(lane.attempts, self._options.retry_interval_s)

    def _connect(self, lane: _EndingLane) -> WireConnection:
        part = lane.part
        route = self._name_servers.find_route(part.topic)
        address = None if route is None else build_view(part.topic, route).master_address(part.broker_name)
        if address is None:
            raise NoRoute(f"topic {part.topic!r}: the broker {part.broker_name} has no master now")
        loan = POOL.borrow(address, self._options.security)
        connection = loan.__enter__()
        lane.loan, lane.connection = loan, connection
        return connection

    def _drop_committed(self, lane: _EndingLane, connection: WireConnection) -> None:
        """Removes from the window the half messages that the key index reports as committed."""
        queries = [self._make_query(lane.part, half) for half in lane.window]
        answers = connection.request_all(queries, self._options.send_timeout_s)
        pairs = zip(lane.window, answers, strict=True)
        lane.window = [half for half, answer in pairs if not is_committed(half, lane.part.topic, answer)]

    def _make_query(self, part: HalfPart, half: Half) -> Command:
        header = QueryMessageRequest(
            topic=part.topic,
            key=half.key,
            count_max=32,
            begin_at_ms=self._since_ms,
            end_at_ms=2**63 - 1,
            is_unique_key=True,
        )
        return Command.request(RequestCode.QUERY_MESSAGE, header)

    def _make_end(self, part: HalfPart, half: Half, decision: int) -> Command:
        header = EndTransactionRequest(
            producer_group=self._group,
            half_queue_offset=half.half_offset,
            log_offset=half.log_offset,
            decision=decision,
            unique_key=half.key,
            topic=part.topic,
            transaction_id=half.key,
            broker_name=part.broker_name,
        )
        return Command.request(RequestCode.END_TRANSACTION, header)


def is_committed(half: Half, topic: str, answer: Command) -> bool:
    """Returns True if the answer of the key index contains the committed form of exactly this half message.

    Without permission to query, the answer is False, and the message may be committed twice.

    Raises:  the RequestRejected class of any other rejection.
    """
    if answer.code in _NOT_FOUND:
        return False
    if answer.code != ResponseCode.SUCCESS:
        raise rejections.to_error(answer)
    return any(
        record.topic == topic and record.unique_key == half.key and record.prepared_offset == half.log_offset
        for record in decode_records(answer.body)
    )


log = logging.getLogger(__name__)


@dataclass
class TaskHalves(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """The half messages that one task attempt stored; `is_decided`: none, because the batch was decided
    before.
    """

    name: str
    parts: tuple[bytes, ...]
    is_decided: bool = False
    empty_count: int = 0
    """The number of rows without a body that were skipped or diverted."""


def commit(options: SinkOptions, batch_id: int, tasks: Sequence[TaskHalves]) -> None:
    """Commits the batch; every row is visible when it returns.

    Raises:  MessageIllegal for too many rows, with no row visible; EndFailed saying what to do.
    """
    if not tasks:
        return
    parts = _join(tasks)
    if count_halves(parts) > options.transaction_rows_max:
        raise too_many_rows(options.transaction_rows_max)
    files = _files(options, tasks)
    if files is None:
        try:
            Ender(options, options.group, _now_ms()).commit(parts, is_repeat=False)
        except EndFailed as error:
            raise EndFailed(f"{error}; they are taken back: the write has no stateDir") from error
        return
    with files.locked():
        known = files.read()
        if known is not None and not known.is_done:
            # An earlier commit did not finish.
            _carry_out(options, files, known, files.read_parts(known), is_repeat=True)
        if known is not None and known.key == (tasks[0].name, batch_id):
            roll_back(options, parts)
        elif any(task.is_decided for task in tasks):
            raise ConfigError(f"{files.directory}: the decision of batch {batch_id} has gone meanwhile")
        elif parts:
            decision = Decision(
                name=tasks[0].name,
                batch_id=batch_id,
                group=options.group,
                rows=count_halves(parts),
                decided_at_ms=_now_ms(),
                file=new_file_name(batch_id),
            )
            files.write(decision, parts)
            _carry_out(options, files, decision, parts, is_repeat=False)


def abort(options: SinkOptions, batch_id: int, tasks: Sequence[TaskHalves]) -> None:
    """Rolls back the half messages, unless the batch is decided: Spark may abort a committed batch."""
    files = _files(options, tasks)
    with nullcontext() if files is None else files.locked():
        known = None if files is None else files.read()
        if known is None or known.key != (tasks[0].name, batch_id):
            roll_back(options, _join(tasks))


def roll_back(options: SinkOptions, parts: Sequence[HalfPart]) -> None:
    """Rolls back as many half messages as possible; the brokers discard the others."""
    Ender(options, options.group, 0).roll_back(parts)


def _carry_out(
    options: SinkOptions,
    files: DecisionFiles,
    decision: Decision,
    parts: Sequence[HalfPart],
    *,
    is_repeat: bool,
) -> None:
    """Sends the ends of a stored decision. `is_repeat`: an earlier run has sent some of them."""
    try:
        Ender(options, decision.group, decision.decided_at_ms).commit(parts, is_repeat=is_repeat)
    except EndFailed as error:
        raise EndFailed(
            f"{error}; start the query again to commit them ({files.directory} holds the decision). Only if"
            " their broker has lost them for good: remove that directory, and the whole batch is sent again"
        ) from error
    files.mark_done(decision)


def _join(tasks: Sequence[TaskHalves]) -> list[HalfPart]:
    return [decode_part(raw) for task in tasks for raw in task.parts]


def _files(options: SinkOptions, tasks: Sequence[TaskHalves]) -> DecisionFiles | None:
    return DecisionFiles(options.state_dir, tasks[0].name) if options.state_dir and tasks else None


def _now_ms() -> int:
    return int(time.time() * 1000)
