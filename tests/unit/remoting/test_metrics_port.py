"""A scrape with many series is spread over turns of the loop, and shared by scrapers that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from prometheus_client.parser import text_string_to_metric_families

from sim.memory import ManualClock, MemoryNetwork
from tandemmq.remoting.http import CONNECTION_S_MAX, HttpAnswer
from tandemmq.remoting.metrics_port import RENDER_S_MIN, SLICE_S, MetricsPort, MetricsSource
from tandemmq.telemetry import metrics
from tandemmq.telemetry.metrics import Sample

PIECES = 10


class Work(ManualClock):
    """A clock that the reading of a piece moves."""

    def spend(self, seconds: float) -> None:
        self._now_s += seconds


class Rig:
    """A port whose pieces take half a slice each."""

    def __init__(self) -> None:
        self.clock = Work()
        self.network = MemoryNetwork(self.clock)
        self.read: list[int] = []
        self.is_broken = False
        source = MetricsSource(
            "broker",
            tuple,
            read_all=lambda: [Sample(metrics.HELD_PULLS, 3)],
            check_health=lambda: HttpAnswer(b"ok\n"),
            read_pieces=self._read,
        )
        self.port = MetricsPort(source, network=self.network, clock=self.clock)

    def _read(self) -> Iterator[Sequence[Sample]]:
        for number in range(PIECES):
            self.clock.spend(SLICE_S / 2)
            if self.is_broken and number == 3:
                raise RuntimeError("a table cannot be read")
            self.read.append(number)
            yield [Sample(metrics.TOPIC_IN, number, (f"t{number}",))]

    async def fetch(self, address: tuple[str, int]) -> tuple[int, str]:
        reader = asyncio.StreamReader()
        transport = await self.network.connect(*address, lambda: asyncio.StreamReaderProtocol(reader), 5.0)
        transport.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        return int(head.split()[1]), body


def series_of(body: str) -> dict[str, float]:
    """Returns the values by topic; the held pulls have none."""
    return {
        sample.labels.get("topic", ""): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if not sample.name.startswith("tandemmq_process_")
    }


async def test_pieces_take_turns_of_the_loop() -> None:
    rig = Rig()
    steps = rig.port._serve_metrics()
    counts = []
    for answer in steps:
        counts.append(len(rig.read))
        if answer is not None:
            break
    assert counts == [2, 4, 6, 8, 10, 10]
    assert answer is not None
    assert series_of(answer.body.decode()) == {"": 3} | {f"t{number}": number for number in range(PIECES)}


async def test_scrapers_that_wait_share_a_round_and_one_that_leaves_does_not_end_it() -> None:
    rig = Rig()
    first, second, third = (rig.port._serve_metrics() for _ in range(3))
    assert [next(first), next(second), next(first), next(third)] == [None] * 4
    first.close()
    answers = [[answer for answer in steps if answer is not None] for steps in (second, third)]
    assert rig.read == list(range(PIECES))
    assert answers[0] == answers[1]
    again = next(rig.port._serve_metrics())
    assert [again] == answers[0], "the text is new enough"
    rig.clock.spend(2 * RENDER_S_MIN)
    assert next(rig.port._serve_metrics()) is None


async def test_round_that_nobody_waited_for_is_begun_anew() -> None:
    rig = Rig()
    assert next(rig.port._serve_metrics()) is None
    assert rig.read == [0, 1]
    rig.clock.spend(CONNECTION_S_MAX)
    answers = list(rig.port._serve_metrics())
    assert rig.read == [0, 1, *range(PIECES)]
    assert answers[-1] is not None


async def test_failing_reader_fails_the_scrape_only() -> None:
    rig = Rig()
    address = await rig.port.start("a", 0)
    rig.is_broken = True
    assert (await rig.fetch(address))[0] == 500
    rig.is_broken = False
    status, body = await rig.fetch(address)
    assert (status, len(series_of(body))) == (200, PIECES + 1)
    await rig.port.stop()
