"""The comparison of gRPC proxies: what the tables make of the readings."""

from __future__ import annotations

import json

from bench.java.clusters import JAVA, OURS
from bench.java.proxies import ProxyFigures, ProxyMemory, ProxyReadings, as_json, render_proxies
from tandemmq.bench.proxy_load import IN_FLIGHT, OPERATIONS


def some_readings() -> ProxyReadings:
    found = ProxyReadings([], [])
    for round_number in range(3):
        for side, us in ((OURS, 200.0), (JAVA, 100.0 * (1 + round_number))):
            for operation in OPERATIONS:
                for in_flight in IN_FLIGHT:
                    found.calls.append(
                        ProxyFigures(
                            side=side,
                            operation=operation,
                            in_flight=in_flight,
                            per_second=1e6 / us,
                            processor_us=us,
                            generator_us=20.0,
                            p50_us=us * in_flight,
                            p99_us=2 * us * in_flight,
                        )
                    )
            size = int(us * 2**20)
            for state in ("idle", "load"):
                found.memory.append(
                    ProxyMemory(
                        side=side,
                        state=state,
                        resident=size,
                        proportional=size // 2,
                        ready_s=us / 400,
                        start_processor_s=us / 400,
                    )
                )
    return found


def test_ratios_are_those_of_pairs() -> None:
    page = render_proxies(some_readings())
    assert page.startswith("Medians of 3 rounds")
    row = "| sends of 1 KiB, 16 in flight | 5,000 | 5,000 | **1.00** (0.50 to 1.50) |"
    assert f"{row} 200.0 | 200.0 | **1.00** (0.67 to 2.00) |" in page
    assert "| acknowledgements, 64 in flight | p50 | 12.80 | 12.80 | 1.00 |" in page


def test_memory_under_load_is_the_most_of_all_readings() -> None:
    page = render_proxies(some_readings())
    assert "| MiB of memory, idle (RSS) | 200 | 200 | **1.00** |" in page
    assert "| MiB of memory, the most under load (PSS) | 100 | 150 | **0.67** |" in page
    assert "| seconds from the start to the first answer | 0.50 | 0.50 | **1.00** |" in page


def test_readings_are_json() -> None:
    page = json.loads(json.dumps(as_json(some_readings())))
    assert len(page["calls"]) == 2 * 3 * 9
    assert {one["state"] for one in page["memory"]} == {"idle", "load"}
