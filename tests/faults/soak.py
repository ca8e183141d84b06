"""A master and a slave under traffic and one random fault after the other: `make soak MINUTES=10`.

The faults come from a seed; their timing depends on the machine, so a run cannot be repeated exactly. Prints
one line per fault and at the end

    SOAK OK seconds=600 acknowledged=N lost=0 order=0 skipped=0 duplicates=N faults=N

or SOAK FAILED with the findings, exit code 1, and keeps the directory with the logs. At the end the logs of
both brokers are compared byte by byte (`tandemmq audit`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from client_ledger import ClientLedger, Findings, consuming, sending
from fault_cluster import FaultCluster
from fault_waits import create_topic, until_delivered, until_in_sync, until_more

TOPIC = "Soak"
QUEUE_COUNT = 4
PAUSE_S = 0.01
"""The pause between the sends of one queue: the machine has other work."""
FAULT_S_MIN, FAULT_S_MAX = 0.3, 4.0
"""The duration of a fault: below and above slaveTimeout (0.8 s) and haHousekeepingInterval (1.5 s)."""
SHOWN_MAX = 20

Act = Callable[[], Awaitable[None]]


class Soak:
    """One run. `run` returns the findings."""

    def __init__(self, cluster: FaultCluster, *, seed: int, seconds: float) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._restart_consumer = asyncio.Event()
        self.ledger = ClientLedger()
        self.faults: Counter[str] = Counter()

    async def run(self) -> Findings:
        cluster, ledger = self._cluster, self.ledger
        await create_topic(cluster, TOPIC, QUEUE_COUNT)
        await until_in_sync(cluster)
        reading = asyncio.create_task(self._consume())
        try:
            async with sending(cluster.namesrv.address, ledger, TOPIC, queue_count=QUEUE_COUNT) as load:
                load.pause_s = PAUSE_S
                await self._harm()
            await until_delivered(ledger)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await until_in_sync(cluster)
        return ledger.check()

    async def _harm(self) -> None:
        """Injects one fault after the other, each healed before the next; sends are confirmed again in
        between.
        """
        faults = self._faults()
        ends_at = time.monotonic() + self._seconds
        while time.monotonic() < ends_at:
            name = self._chance.choice(sorted(faults))
            lasts_s = self._chance.uniform(FAULT_S_MIN, FAULT_S_MAX)
            harm, heal = faults[name]
            print(f"{name} for {lasts_s:.1f} s, acknowledged so far {len(self.ledger.promised)}", flush=True)
            await harm()
            await asyncio.sleep(lasts_s)
            await heal()
            self.faults[name] += 1
            await until_more(self.ledger, "SEND_OK", self._chance.randrange(1, 300))

    def _faults(self) -> dict[str, tuple[Act, Act]]:
        """Returns for each name the functions that inject the fault and heal it."""
        cluster = self._cluster
        master, slave = cluster.master, cluster.slave
        links = {
            "clients": cluster.to_master,
            "replication": cluster.to_master_ha,
            "slave_readers": cluster.to_slave,
        }
        faults: dict[str, tuple[Act, Act]] = {
            "kill_master": (act(master.kill), act(master.start)),
            "kill_slave": (act(slave.kill), act(slave.start)),
            "stop_master": (act(master.stop), act(master.start)),
            "freeze_master": (act(cluster.freeze, master), act(cluster.thaw, master)),
            "freeze_slave": (act(cluster.freeze, slave), act(cluster.thaw, slave)),
            "slow_replication": (act(cluster.to_master_ha.slow, 20_000), act(cluster.to_master_ha.heal)),
            "restart_consumer": (act(self._restart_consumer.set), act(lambda: None)),
        }
        for name, link in links.items():
            faults[f"cut_{name}"] = (act(link.cut), act(link.heal))
            faults[f"hold_{name}"] = (act(link.hold), act(link.heal))
        return faults

    async def _consume(self) -> None:
        while True:
            self._restart_consumer.clear()
            async with consuming(self._cluster.namesrv.address, self.ledger, TOPIC):
                await self._restart_consumer.wait()


def act(function: Callable[..., object], *arguments: object) -> Act:
    """Returns the call as an awaitable; it may take long, so the loop continues meanwhile."""

    async def run() -> None:
        if isinstance(getattr(function, "__self__", None), asyncio.Event):
            function(*arguments)
        else:
            await asyncio.to_thread(function, *arguments)

    return run


def are_logs_equal(cluster: FaultCluster) -> bool:
    command = [sys.executable, "-m", "tandemmq", "audit", "-n", cluster.namesrv.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    return done.returncode == 0


def soak(root: Path, *, seconds: float, seed: int) -> int:
    """Runs the soak and returns the exit code."""
    cluster = FaultCluster(root)
    try:
        begun_at = time.monotonic()
        run = Soak(cluster, seed=seed, seconds=seconds)
        findings = asyncio.run(run.run())
        lasted_s = time.monotonic() - begun_at
        is_equal = are_logs_equal(cluster)
    finally:
        cluster.close()
    is_good = is_equal and not (findings.lost or findings.order or findings.skipped)
    for line in [*findings.lost, *findings.order, *findings.skipped][:SHOWN_MAX]:
        print(line)
    print("sends", dict(sorted(run.ledger.statuses.items())), "faults", dict(sorted(run.faults.items())))
    print(
        f"SOAK {'OK' if is_good else 'FAILED'} seconds={lasted_s:.0f} acknowledged={len(run.ledger.promised)}"
        f" lost={len(findings.lost)} order={len(findings.order)} skipped={len(findings.skipped)}"
        f" duplicates={findings.duplicates} faults={run.faults.total()}"
    )
    return 0 if is_good else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # every fault causes warnings in the clients
    root = Path(tempfile.mkdtemp(prefix="tandemmq-soak-"))
    try:
        code = soak(root, seconds=options.minutes * 60, seed=options.seed)
    except BaseException:
        print(f"SOAK FAILED; logs are in {root}")
        raise
    if code:
        print(f"logs are in {root}")
    else:
        shutil.rmtree(root)
    return code


if __name__ == "__main__":
    sys.exit(main())
