"""The guard of what a message costs counts the package's own steps, and says when they are far more."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import costs
from costs import PACKAGE, Asker, Case, Cost, counting_steps, measure_all
from tandemmq.bench.generator import send_frames
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame

CASE = Case(name="one", frames=[], messages=1, steps=100, loops=10)


def function_of(path: str, rounds: int) -> object:
    """A function that loops, as if it stood in the file."""
    names: dict[str, object] = {}
    source = f"def loop():\n    for _ in range({rounds}): pass\n"
    exec(compile(source, path, "exec"), names)
    return names["loop"]


def steps_of(path: str, rounds: int) -> int:
    loop = function_of(path, rounds)
    with counting_steps() as steps:
        loop()  # type: ignore[operator]
    return steps.total()


def test_a_longer_loop_takes_more_steps_and_others_take_none() -> None:
    ours = f"{PACKAGE}/broker/some.py"
    assert steps_of(ours, 200) - steps_of(ours, 100) in range(100, 400)
    assert steps_of("/elsewhere.py", 200) == 0


@pytest.mark.parametrize(
    ("steps", "loops", "is_far_more"), [(129, 29, False), (131, 10, True), (100, 31, True), (50, 5, False)]
)
def test_a_large_regression_is_told_from_noise(steps: float, loops: float, is_far_more: bool) -> None:
    cost = Cost(case=CASE, steps=steps, loops=loops, us=1, by_function=Counter())
    assert cost.is_far_more is is_far_more
    timeless = Cost(case=replace(CASE, loops=None), steps=steps, loops=1e6, us=1, by_function=Counter())
    assert timeless.is_far_more is (steps > 130)


async def test_the_same_requests_take_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does; what is timed beside them decides nothing here. `make costs` measures
    every case beside its recorded number.
    """
    some, with_an_end = costs.cases()[:2], costs.cases_with_an_end
    monkeypatch.setattr(costs, "cases", lambda: some)
    monkeypatch.setattr(costs, "cases_with_an_end", lambda *ends: with_an_end(*ends)[:1])
    monkeypatch.setattr(costs, "TIMED_ROUNDS", 1)
    first, second = [await measure_all(tmp_path / name) for name in ("first", "second")]
    for one, other in zip(first, second, strict=True):
        assert one.steps == pytest.approx(other.steps, rel=0.04)
        assert not replace(one, loops=0.0).is_far_more


@pytest.mark.parametrize(
    ("topic", "bytes_min", "says"),
    [("%no topic%", 0, "the broker refuses"), (costs.TOPIC, 1 << 20, "bytes came")],
)
async def test_costs_reject_a_broker_that_does_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, bytes_min: int, says: str
) -> None:
    frames = send_frames(topic, 1, 10, 1)
    case = Case(name="other", frames=frames, messages=1, steps=1, loops=None, answer_bytes_min=bytes_min)
    monkeypatch.setattr(costs, "cases", lambda: [case])
    with pytest.raises(RuntimeError, match=says):
        await measure_all(tmp_path)
    assert await asyncio.to_thread(costs.main, []) == 1


@pytest.mark.parametrize(("code", "is_refused"), [(0, False), (1, True)])
async def test_json_in_a_body_is_not_parsed_as_an_answer(code: int, is_refused: bool) -> None:
    body = b'{"code":0,"msgId":"' + b"0" * 32 + b'","queueOffset":"7"}'
    answer = encode_frame(Command.request(10).reply(code, body=body))
    asker = Asker()

    class Echo(asyncio.WriteTransport):
        def write(self, _data: object) -> None:
            asker.data_received(answer)

    asker.connection_made(Echo())
    if is_refused:
        with pytest.raises(RuntimeError, match="the broker refuses"):
            await asker.exchange(b"", 1)
    else:
        assert await asker.exchange(b"", 1) == len(answer)
    assert asker.sent == []
