"""The run of `make grpc ARGS=--chaos` as its gRPC clients saw it, and the judgement of it. Pure.

Every attempt of a send has a body of its own, so that a message which was stored twice, because an answer was
lost, is not taken for one that was delivered twice. The calls are made in the order of the events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple


class Attempt(NamedTuple):
    """One attempt to send a message; `sender` is its message group in a FIFO topic."""

    topic: str
    sender: str
    number: int
    attempt: int

    @property
    def body(self) -> bytes:
        return f"{self.sender} {self.number} {self.attempt}".encode()


def attempt_of(topic: str, body: bytes) -> Attempt:
    sender, number, attempt = body.decode().split(" ")
    return Attempt(topic, sender, int(number), int(attempt))


class Delivery(NamedTuple):
    """One message of a receive. `delivery_attempt` is 1 for the first delivery of a stored message."""

    attempt: Attempt
    delivery_attempt: int
    queue_id: int
    queue_offset: int


class AckEnd(Enum):
    """The end of one AckMessage: UNKNOWN is an error, after which the message may be acknowledged or not."""

    OK = auto()
    INVALID = auto()
    UNKNOWN = auto()


@dataclass(slots=True)
class _State:
    """The deliveries and acknowledgements of one attempt."""

    has_ack_begun: bool = False
    is_acked: bool = False
    has_unknown_ack: bool = False
    is_done: bool = False
    places: set[tuple[int, int]] = field(default_factory=set)
    """The queue and the offset of each first delivery."""


@dataclass(slots=True)
class ChaosHistory:
    """Findings are texts; an empty list is what the proof wants.

    repeats_after_ack  deliveries after an acknowledgement of the message was answered with OK
    order              deliveries in a FIFO group while an earlier message of the message group was open:
                       neither in the same receive nor acknowledged by anybody
    """

    fifo_topics: frozenset[str]
    sent: dict[Attempt, None] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    repeats_after_ack: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Other faults, such as a group that is not complete in time."""
    acks_elsewhere: int = 0
    sends: Counter[str] = field(default_factory=Counter)
    deliveries: Counter[str] = field(default_factory=Counter)
    """The numbers by topic."""
    repeats: int = 0
    stored_twice: int = 0
    refused_early: Counter[str] = field(default_factory=Counter)
    """The acknowledgements that were refused although the invisible time had not passed, by topic."""
    errors: Counter[str] = field(default_factory=Counter)
    _states: dict[Attempt, _State] = field(default_factory=lambda: defaultdict(_State))
    _open: dict[tuple[str, str], dict[Attempt, None]] = field(default_factory=lambda: defaultdict(dict))
    """The sent messages of a message group without an acknowledgement, in order."""
    _missing: dict[Attempt, None] = field(default_factory=dict)

    def record_send(self, attempt: Attempt) -> None:
        """Records a send that was answered with OK."""
        self.sent[attempt] = None
        self.sends[attempt.topic] += 1
        state = self._states[attempt]
        if not state.is_done:
            self._missing[attempt] = None
        if attempt.topic in self.fifo_topics and not state.has_ack_begun:
            self._open[attempt.topic, attempt.sender][attempt] = None

    def record_receive(self, consumer: str, deliveries: Iterable[Delivery]) -> None:
        """Records the messages of one ReceiveMessage, in the order of the stream."""
        before: set[Attempt] = set()
        for one in deliveries:
            self._record_delivery(consumer, one)
            if one.attempt.topic in self.fifo_topics:
                self._check_order(consumer, one.attempt, before)
            before.add(one.attempt)

    def _record_delivery(self, consumer: str, one: Delivery) -> None:
        state = self._states[one.attempt]
        place = one.queue_id, one.queue_offset
        self.deliveries[one.attempt.topic] += 1
        # A redelivery has the place of the first delivery, or a higher delivery attempt in a retry topic.
        is_other_record = one.delivery_attempt == 1 and bool(state.places) and place not in state.places
        self.stored_twice += is_other_record
        self.repeats += bool(state.places) and not is_other_record
        if state.is_acked and not is_other_record:
            self.repeats_after_ack.append(f"{consumer} received {one}, which was acknowledged")
        if one.delivery_attempt == 1:
            state.places.add(place)

    def _check_order(self, consumer: str, attempt: Attempt, before: set[Attempt]) -> None:
        for other in self._open[attempt.topic, attempt.sender]:
            if other.number < attempt.number and other not in before:
                self.order.append(f"{consumer} received {attempt} while {other} was open")
                return

    def record_ack_begin(self, attempt: Attempt) -> None:
        """Records that an acknowledgement is on its way: the next message of the group may come."""
        self._states[attempt].has_ack_begun = True
        self._open[attempt.topic, attempt.sender].pop(attempt, None)

    def record_ack(self, attempt: Attempt, end: AckEnd, *, is_elsewhere: bool, is_early: bool) -> None:
        """Records the answer of an AckMessage. `is_elsewhere`: it went to another proxy than the one that
        delivered the message; `is_early`: the invisible time since its delivery had not passed.
        """
        state = self._states[attempt]
        if end is AckEnd.OK:
            state.is_acked = True
            self.acks_elsewhere += is_elsewhere
        elif end is AckEnd.UNKNOWN:
            state.has_unknown_ack = True
        elif is_early and not (state.has_unknown_ack or state.is_acked):
            self.refused_early[attempt.topic] += 1
        if end is AckEnd.OK or (end is AckEnd.INVALID and state.has_unknown_ack):
            state.is_done = True
            self._missing.pop(attempt, None)

    @property
    def missing(self) -> list[Attempt]:
        """The messages whose send was answered with OK and that no consumer has acknowledged."""
        return list(self._missing)


def verdict(history: ChaosHistory) -> tuple[bool, str]:
    """Returns whether the run passed, and its last line."""
    lost = history.missing
    is_ok = not (lost or history.order or history.repeats_after_ack or history.faults)
    is_ok = is_ok and bool(history.sent) and history.acks_elsewhere > 0
    return is_ok, (
        f"GRPC CHAOS {'OK' if is_ok else 'FAILED'} sent={len(history.sent)} lost={len(lost)}"
        f" order={len(history.order)} repeats_after_ack={len(history.repeats_after_ack)}"
        f" acks_elsewhere={history.acks_elsewhere}"
    )
