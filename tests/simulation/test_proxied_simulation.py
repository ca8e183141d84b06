"""The simulation of clusters with gRPC proxies: a few seeds pass, and a seed repeats exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from zlib import crc32

from sim.cluster.simulation import run_seed
from sim.proxied.run import PROXIED

SMOKE_SEEDS = range(40, 43)
PRINT_DIGEST = (
    "from sim.cluster.simulation import run_seed; from sim.proxied.run import PROXIED;"
    "from zlib import crc32;"
    f"result = run_seed({SMOKE_SEEDS[0]}, kind=PROXIED);"
    "print(result.digest, crc32(chr(10).join(result.trace).encode()))"
)


def test_seeds_break_no_promise() -> None:
    for seed in SMOKE_SEEDS:
        result = run_seed(seed, kind=PROXIED)
        assert not result.findings, (seed, result.findings.lines())
        for count in ("sent", "acknowledged", "cancelled"):
            assert result.counts[f"proxied: {count}"], (seed, count)


def test_a_seed_repeats_with_any_hash_seed() -> None:
    result = run_seed(SMOKE_SEEDS[0], kind=PROXIED)
    expected = f"{result.digest} {crc32(chr(10).join(result.trace).encode())}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", PRINT_DIGEST]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.strip() == expected
