"""Topics that are created and grow under running consumers: nothing is skipped, and growth happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sim.cluster.settings import GROWING, Settings
from sim.cluster.simulation import CLASSIC, run_seed
from sim.elected.run import ELECTED


def with_growth(settings: Settings) -> Settings:
    return replace(settings, work=(GROWING,), producer_count=1, worker_count=1, load_s=15.0)


def test_consumers_of_every_kind_skip_nothing_in_topics_that_grow() -> None:
    counts: Counter[str] = Counter()
    for seed, kind in ((2, CLASSIC), (3, CLASSIC), (1, ELECTED)):
        result = run_seed(seed, with_growth, kind=kind)
        assert result.findings.lines() == []
        counts.update(result.counts)
    assert counts["growing: topics created"] > 0
    assert counts["growing: topics created by a send"] > 0
    assert counts["growing: queues added"] > counts["growing: queues added in two steps"] > 0
