"""`python -m sim.plants`: plants one-line bugs, each of which the proofs must find.

Each bug is planted into a copy of the sources, one at a time, and the proofs named in its row run on the copy
until one of them fails. A proof that failed must pass on the sources without the bug. The last line is
`PLANTS OK planted=N found=N`, or `PLANTS FAILED ...` with exit code 1. The lines before it name for each bug
the proof that found it, and the number of seeds and seconds.
With --hunt a proof runs in this process on the imported sources; this is how a planted copy is searched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rich.console import Console

import tandemmq
from sim.bit_flips import run_flips
from sim.cluster.simulation import run_seed as run_cluster
from sim.elected.run import ELECTED
from sim.plant_catalogue import ELECTION_BUGS, PLANTS, Plant
from sim.proxied.run import PROXIED
from sim.raft.simulation import run_seed as run_raft
from sim.run import run_seed as run_store
from sim.seeds import PROCESSES, print_text, progress_on, without_logging

SOURCES = Path(tandemmq.__file__).parent
CHECKOUT = SOURCES.parent.parent
SEEDS = {"crash": 1000, "flips": 100, "sim": 1000, "elected": 500, "proxied": 500, "raft": 2000}
"""The number of seeds that the default commands run; `make crash` flips bits with every tenth of its
seeds.
"""
EXCUSED_SEEDS = 100
"""The number of seeds for a bug that its row declares undetectable: they check that it still is."""
FOUND = "found by seed "
PROOF_MINUTES_MAX = 45
SEED_SECONDS_MAX = 180
"""The limit of a seed's processor time; a seed that takes more hangs, which the user of the proof would
notice. A simulation never waits, and time on the clock would depend on what else the machine does.
"""
TEST_SECONDS_MAX = 120
"""The time limit of a test."""
TEST_MINUTES_MAX = 10
"""The time limit of a file of tests, for hangs that the limit of a test does not cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one planted bug; `proof` None: not found."""

    plant: Plant
    proof: str | None
    detail: str
    seconds: float

    def line(self) -> str:
        """Returns one row of the report."""
        how = f"{self.proof}: {self.detail}" if self.proof else f"NOT FOUND ({self.detail})"
        return f"{self.plant.name} [{self.plant.path}] {how}, {self.seconds:.0f} s"


def _crash(seed: int) -> bool:
    return bool(run_store(seed).faults)


def _flips(seed: int) -> bool:
    return bool(run_flips(seed).returned)


def _sim(seed: int) -> bool:
    return bool(run_cluster(seed).findings)


def _raft(seed: int) -> bool:
    return bool(run_raft(seed).findings)


def _elected(seed: int) -> bool:
    return bool(run_cluster(seed, kind=ELECTED).findings)


def _proxied(seed: int) -> bool:
    return bool(run_cluster(seed, kind=PROXIED).findings)


HUNTS: dict[str, Callable[[int], bool]] = {
    "crash": _crash,
    "flips": _flips,
    "sim": _sim,
    "elected": _elected,
    "proxied": _proxied,
    "raft": _raft,
}


def _raise_hangs(*_: object) -> None:
    raise TimeoutError(f"a seed took more than {SEED_SECONDS_MAX} s of processor time")


def hunt(proof: str, first_seed: int, seeds: int) -> int | None:
    """Returns the first seed that finds something in the imported sources, raises an exception, or hangs;
    None if none does.
    """
    signal.signal(signal.SIGPROF, _raise_hangs)
    for seed in range(first_seed, first_seed + seeds):
        with without_logging():
            signal.setitimer(signal.ITIMER_PROF, SEED_SECONDS_MAX)
            try:
                is_found = HUNTS[proof](seed)
            except Exception:  # noqa: BLE001  # any exception counts as found
                is_found = True
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        if is_found:
            return seed
    return None


def plant_into(directory: Path, plant: Plant) -> Path:
    """Copies the sources below `directory`, with the bug, beside the rest of the checkout; returns
    `directory`.

    Raises:  ValueError if the catalogue is out of date: the original text must occur in the file exactly
             once.
    """
    copy = directory / "src" / "tandemmq"
    shutil.copytree(SOURCES.parent, directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / plant.path
    text = path.read_text(encoding="utf-8")
    if text.count(plant.sound) != 1:
        raise ValueError(f"{plant.name}: {plant.path} has its line {text.count(plant.sound)} times, not once")
    path.write_text(text.replace(plant.sound, plant.bug), encoding="utf-8")
    for entry in CHECKOUT.iterdir():  # tests also read pages and packaging; without these they would fail
        if entry.name != "src" and not entry.name.startswith("."):
            (directory / entry.name).symlink_to(entry)
    return directory


def try_plant(plant: Plant, *, only_proof: str = "", seeds: int = 0) -> Outcome:
    """Plants the bug and runs its proofs, one after the other, until one finds it.

    `only_proof`: run no other proof; `seeds`: the number for each simulation, 0 for the default of its
    command.
    """
    begun_at = time.monotonic()
    detail = ""
    with tempfile.TemporaryDirectory(prefix="tandemmq-plant-") as temporary:
        root = plant_into(Path(temporary), plant)
        for proof in (only_proof,) if only_proof else plant.proofs:
            is_found, detail = _run(root, proof, seeds or _seeds_of(plant, proof))
            if is_found and not _passes_unplanted(proof, detail):
                detail = f"{proof} finds as much in unchanged sources: {detail}"
            elif is_found:
                return Outcome(plant=plant, proof=proof, detail=detail, seconds=time.monotonic() - begun_at)
    return Outcome(plant=plant, proof=None, detail=detail, seconds=time.monotonic() - begun_at)


def _seeds_of(plant: Plant, proof: str) -> int:
    """Returns the number of seeds that search for the bug; 0 if the proof is a file of tests."""
    seeds = SEEDS.get(proof, 0)
    return min(seeds, EXCUSED_SEEDS) if plant.why_not else seeds


def _passes_unplanted(proof: str, detail: str) -> bool:
    """Returns True if the seed, or the file of tests, that found the bug finds nothing in the sources without
    it.
    """
    if proof in HUNTS:
        is_found, _ = _run(CHECKOUT, proof, 1, first_seed=int(detail.removeprefix(FOUND)))
        return not is_found
    return _passes(proof)


@cache
def _passes(tests: str) -> bool:
    return not _run(CHECKOUT, tests, 0)[0]


def _run(root: Path, proof: str, seeds: int, *, first_seed: int = 0) -> tuple[bool, str]:
    """Returns True if the proof fails on the sources below `root`, and its message."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    if proof in HUNTS:
        command = [sys.executable, "-m", "sim.plants", "--hunt", proof]
        command += ["--first-seed", str(first_seed), "--seeds", str(seeds)]
    else:
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider"]
        command += ["-o", f"timeout={TEST_SECONDS_MAX}", f"tests/{proof}"]
    minutes_max = PROOF_MINUTES_MAX if proof in HUNTS else TEST_MINUTES_MAX
    output, exit_code = _wait_for(command, root, environment, minutes_max)
    if exit_code is None:
        return proof not in HUNTS, f"it hangs, {minutes_max} minutes at least"
    if proof in HUNTS:
        found = [line for line in output.splitlines() if line.startswith(FOUND)]
        return bool(found), found[0] if found else f"not in {seeds} seeds"
    failed = [line for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    return exit_code == 1 and bool(failed), _test_of(failed[0]) if failed else "passed"


def _wait_for(
    command: Sequence[str], root: Path, environment: Mapping[str, str], minutes_max: int
) -> tuple[str, int | None]:
    """Returns the output of the command and its exit code; None if it was killed, with all its processes."""
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=minutes_max * 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "", None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return output, process.returncode


def _test_of(line: str) -> str:
    """Returns the name in `FAILED tests/file.py::name[values] - reason`."""
    return line.split("::", 1)[-1].split(" - ")[0]


def run_all(
    plants: Sequence[Plant], console: Console, *, jobs: int, only_proof: str = "", seeds: int = 0
) -> list[Outcome]:
    """Plants every bug, `jobs` at a time."""
    outcomes = []
    attempt = partial(try_plant, only_proof=only_proof, seeds=seeds)
    with progress_on(console) as progress, ThreadPoolExecutor(jobs) as threads:
        bar = progress.add_task("planting bugs", total=len(plants))
        for outcome in threads.map(attempt, plants):
            outcomes.append(outcome)
            print_text(console, outcome.line())
            progress.update(bar, advance=1)
    return outcomes


def verdict(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields the last lines of the report. Bugs whose row explains why nothing finds them are counted
    separately.
    """
    missed = [outcome for outcome in outcomes if outcome.proof is None]
    excused = [outcome for outcome in missed if outcome.plant.why_not]
    for outcome in excused:
        yield f"not found, as expected: {outcome.plant.name}: {outcome.plant.why_not}"
    planted = len(outcomes) - len(excused)
    found = len(outcomes) - len(missed)
    yield f"PLANTS {'OK' if found == planted else 'FAILED'} planted={planted} found={found}"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sim.plants", description=__doc__)
    parser.add_argument("--only", default="", help="bugs whose name or file has this text")
    parser.add_argument(
        "--elections", action="store_true", help="the ten of elected masters that `make sim` begins with"
    )
    parser.add_argument("--list", action="store_true", help="name the bugs, plant none")
    parser.add_argument(
        "--hunt", choices=sorted(HUNTS), help="run this proof here until a seed finds something"
    )
    parser.add_argument(
        "--proof", default="", help="run this proof only, also on bugs that others are to find"
    )
    parser.add_argument(
        "--seeds", type=int, default=0, help="of each simulation; 0: as many as its command runs"
    )
    parser.add_argument("--jobs", type=int, default=PROCESSES, help="bugs at a time")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args(arguments)
    console = Console()
    if options.hunt:
        seed = hunt(options.hunt, options.first_seed, options.seeds or SEEDS[options.hunt])
        print_text(console, "nothing found" if seed is None else f"{FOUND}{seed}")
        return 0 if seed is None else 1
    plants = [plant for plant in PLANTS if options.only in plant.name or options.only in plant.path]
    if options.elections:
        plants = [plant for plant in plants if plant.name in ELECTION_BUGS]
    if options.list:
        print_text(
            console, *(f"{plant.name} [{plant.path}] by {', '.join(plant.proofs)}" for plant in plants)
        )
        return 0
    outcomes = run_all(plants, console, jobs=options.jobs, only_proof=options.proof, seeds=options.seeds)
    lines = list(verdict(outcomes))
    print_text(console, *lines)
    return 0 if lines[-1].startswith("PLANTS OK") else 1


if __name__ == "__main__":
    sys.exit(main())
