"""Brokers lead, write, copy and fall behind in any order: a copy keeps only bytes that its master has."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.replication.core.epochs import EpochList, consistent_point

BROKER_COUNT = 3
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lead"), st.integers(0, BROKER_COUNT - 1), st.just(0)),
        st.tuples(st.just("write"), st.just(0), st.integers(1, 5)),
        st.tuples(st.just("write_alone"), st.integers(0, BROKER_COUNT - 1), st.integers(1, 5)),
        st.tuples(st.just("copy"), st.integers(0, BROKER_COUNT - 1), st.integers(0, 8)),
    ),
    max_size=40,
)


class Broker:
    """A log whose bytes are serial numbers, so that two masters never write the same."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.epochs = EpochList()
        self.led: int | None = None  # the term in which it leads, as far as it knows


@settings(max_examples=300)
@given(STEPS)
def test_a_copy_never_keeps_a_byte_that_its_master_lacks(steps: list[tuple[str, int, int]]) -> None:
    brokers = [Broker() for _ in range(BROKER_COUNT)]
    master: Broker | None = None
    epoch = serial = 0
    for what, index, count in steps:
        broker = brokers[index]
        if what == "lead":  # any broker may: unclean elections are included
            epoch += 1
            broker.epochs = broker.epochs.append(epoch, len(broker.bytes))
            broker.led, master = epoch, broker
        elif what in ("write", "write_alone"):
            writer = master if what == "write" else broker
            if writer is None or writer.led is None:  # a deposed master continues until it learns of it
                continue
            writer.bytes += range(serial, serial + count)
            serial += count
        elif master is not None and broker is not master:
            broker.led = None
            point = consistent_point(broker.epochs, len(broker.bytes), master.epochs, len(master.bytes))
            if point is None:  # nothing in common: an operator would decide; here: copy anew
                point = 0
            assert broker.bytes[:point] == master.bytes[:point]
            del broker.bytes[point:]
            broker.epochs = broker.epochs.cut_suffix(point).follow(master.epochs)
            broker.bytes += master.bytes[point : point + count]
            for first, second in ((broker, master), (master, broker)):
                same = consistent_point(first.epochs, len(first.bytes), second.epochs, len(second.bytes))
                assert same == min(len(broker.bytes), len(master.bytes)) or not first.bytes
