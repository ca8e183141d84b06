"""The simulation of clusters with gRPC proxies: a few seeds pass, every kind of application works, and a seed
repeats exactly.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from zlib import crc32

import pytest

from sim.cluster.simulation import run_seed
from sim.dice import Dice
from sim.proxied.kinds import KINDS
from sim.proxied.run import PROXIED

PAIRS = (
    (("proxied", "proxied order"), ("acknowledged", "cancelled", "postponed")),
    (("pushed", "pushed order"), ("acknowledged", "held for long", "sessions")),
    (("paid", "buried"), ("acknowledged", "sent")),
    (("buried order",), ("acknowledged", "forwarded", "dead letters")),
)
"""Applications, and what each must have done."""
SEED = 40
REPEATED_LOAD_S = 8.0
PRINT_DIGEST = (
    "from sim.cluster.simulation import run_seed; from sim.proxied.run import PROXIED;"
    "from zlib import crc32;"
    "from dataclasses import replace;"
    f"result = run_seed({SEED}, lambda settings: replace(settings, load_s={REPEATED_LOAD_S}), kind=PROXIED);"
    "print(result.digest, crc32(chr(10).join(result.trace).encode()))"
)


def test_all_kinds_are_tried() -> None:
    assert {name for names, _ in PAIRS for name in names} == KINDS.keys()


@pytest.mark.parametrize(("names", "wanted"), PAIRS)
def test_seeds_break_no_promise(names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    counts: Counter[str] = Counter()
    for is_elected in (False, True):
        seed = next(seed for seed in range(SEED, SEED + 50) if has_controllers(seed) == is_elected)
        result = run_seed(seed, lambda settings: replace(settings, work=names, load_s=8.0), kind=PROXIED)
        assert not result.findings, (seed, result.findings.lines())
        counts.update(result.counts)
    for name in names:
        for what in wanted:
            assert counts[f"{name}: {what}"], (name, what)


def has_controllers(seed: int) -> bool:
    return bool(PROXIED.draw_settings(Dice(seed)).controller_count)


def test_transactions_are_checked_through_telemetry_streams() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEED, SEED + 2):
        counts.update(run_seed(seed, lambda settings: replace(settings, work=("paid",)), kind=PROXIED).counts)
    assert counts["paid: checks"]
    assert counts["paid: left open"]


def test_a_seed_repeats_with_any_hash_seed() -> None:
    result = run_seed(SEED, lambda settings: replace(settings, load_s=REPEATED_LOAD_S), kind=PROXIED)
    expected = f"{result.digest} {crc32(chr(10).join(result.trace).encode())}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", PRINT_DIGEST]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.strip() == expected
