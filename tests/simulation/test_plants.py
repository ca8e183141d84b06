"""The catalogue of planted bugs fits the sources: each bug can be planted, and its proofs exist."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from types import CodeType

import pytest

from sim import plants
from sim.plant_catalogue import ELECTION_BUGS, PLANTS, Plant
from sim.plants import CHECKOUT, HUNTS, SOURCES, plant_into, try_plant

TESTS = Path(__file__).parent.parent
COUNT_MIN = 40


def test_the_catalogue_is_long_and_its_names_differ() -> None:
    names = [plant.name for plant in PLANTS]
    assert len(names) >= COUNT_MIN
    assert len(set(names)) == len(names)
    assert set(ELECTION_BUGS) < set(names)


def instructions(code: CodeType) -> tuple[object, ...]:
    """Returns the instructions, names and constants of some code and of the code in it, without lines."""
    inner = [instructions(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    return (code.co_code, code.co_exceptiontable, *names, *inner)


def compiled(text: str) -> tuple[object, ...]:
    return instructions(compile(text, "plant", "exec", dont_inherit=True))


@functools.cache
def sound_source(path: str) -> tuple[str, tuple[object, ...]]:
    """Returns the text of a source and its instructions. Many plants share a source."""
    text = (SOURCES / path).read_text(encoding="utf-8")
    return text, compiled(text)


def test_a_comment_or_a_line_break_is_no_plant() -> None:
    text = "def twice(number):\n    return 2 * number\n"
    assert compiled(text) == compiled("# twice\ndef twice(\n    number\n):\n    return 2 * number  # so\n")
    assert compiled(text) != compiled(text.replace("2", "3"))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_bug_can_be_planted(plant: Plant) -> None:
    text, sound = sound_source(str(plant.path))
    assert text.count(plant.sound) == 1, f"{plant.path} has its line {text.count(plant.sound)} times"
    assert compiled(text.replace(plant.sound, plant.bug)) != sound
    assert plant.proofs
    for proof in plant.proofs:
        assert proof in HUNTS or (TESTS / proof).exists(), proof


def test_a_bug_is_planted_into_a_copy(tmp_path: Path) -> None:
    plant = PLANTS[0]
    copy = plant_into(tmp_path, plant) / "src" / "tandemmq"
    changed = [
        path
        for path in copy.rglob("*.py")
        if path.read_bytes() != (SOURCES / path.relative_to(copy)).read_bytes()
    ]
    assert changed == [copy / plant.path]
    assert plant.bug in changed[0].read_text(encoding="utf-8")
    assert all((tmp_path / name).is_dir() for name in ("tests", "tools", "docs", "packaging"))


def test_a_seed_hangs_by_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes a seed longer, not its processor time."""

    def run(seed: int) -> bool:
        while seed:  # only the time limit ends this
            pass
        time.sleep(0.3)  # stands for the processor's work for others; there is no condition
        return False

    monkeypatch.setattr(plants, "SEED_SECONDS_MAX", 0.1)
    monkeypatch.setitem(HUNTS, "sim", run)
    assert plants.hunt("sim", 0, 2) == 1


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_fails_without_the_bug_has_not_found_it(
    is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(root: Path, proof: str, seeds: int, *, first_seed: int = 0) -> tuple[bool, str]:
        asked.append((root == CHECKOUT, proof, seeds, first_seed))
        return root != CHECKOUT or is_broken, "found by seed 3"

    monkeypatch.setattr(plants, "_run", run)
    outcome = try_plant(PLANTS[0], only_proof="sim", seeds=10)
    assert asked == [(False, "sim", 10, 0), (True, "sim", 1, 3)]
    assert outcome.proof == (None if is_broken else "sim")


@pytest.mark.parametrize("is_excused", [False, True])
def test_excused_plant_is_tried_with_few_seeds(is_excused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(_root: Path, proof: str, seeds: int, **_: int) -> tuple[bool, str]:
        asked.append((proof, seeds))
        return False, "nothing"

    monkeypatch.setattr(plants, "_run", run)
    plant = next(plant for plant in PLANTS if bool(plant.why_not) == is_excused and "sim" in plant.proofs)
    try_plant(plant)
    assert ("sim", 100 if is_excused else 1000) in asked
