"""The fuzzer's frames: every served request, mutated by the dice and nothing else."""

from __future__ import annotations

import pytest

from sim.dice import Dice
from sim.fuzz.corpus import prologue_of, requests_of
from sim.fuzz.mutate import mutate
from sim.fuzz.victims import BAD_LOG
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.catalogue import CATALOGUE, ServingRole
from tandemmq.protocol.frame import FrameDecoder, encode_frame

SERVERS = [ServingRole.BROKER, ServingRole.NAME_SERVER]


@pytest.mark.parametrize("role", SERVERS)
def test_every_served_request_is_fuzzed(role: ServingRole) -> None:
    served = {code for code, entry in CATALOGUE.items() if entry.served_by is role}
    assert {command.code for command in requests_of(role)} == served
    assert prologue_of(role)


@pytest.mark.parametrize("role", SERVERS)
def test_every_request_of_the_corpus_is_a_frame_with_a_header_that_can_be_read(role: ServingRole) -> None:
    for command in requests_of(role):
        (received,) = FrameDecoder().feed(encode_frame(command))
        kind = CATALOGUE[command.code].request
        if kind is not None:
            received.decode(kind)


@pytest.mark.parametrize("role", SERVERS)
def test_only_the_last_frame_of_a_batch_is_unreadable(role: ServingRole) -> None:
    corpus = requests_of(role)
    dice = Dice(7)
    for _ in range(2_000):
        sent = mutate(dice.pick(corpus), corpus, dice)
        if not sent.is_last and sent.data:
            assert len(FrameDecoder().feed(sent.data)) == 1


def test_the_same_dice_throw_the_same_bytes_and_others_do_not() -> None:
    corpus = requests_of(ServingRole.BROKER)

    def throw(seed: int) -> list[bytes]:
        dice = Dice(seed)
        return [mutate(dice.pick(corpus), corpus, dice).data for _ in range(200)]

    assert throw(1) == throw(1) != throw(2)


def test_some_mutations_cannot_be_read() -> None:
    corpus = requests_of(ServingRole.BROKER)
    dice = Dice(3)
    broken = 0
    for _ in range(2_000):
        try:
            FrameDecoder().feed(mutate(dice.pick(corpus), corpus, dice).data)
        except RemoteProtocolError:
            broken += 1
    assert broken


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01T00:00:00.000Z ERROR tandemmq.remoting.dispatch request.failed code=10 peer=127.0.0.1:1",
        "Traceback (most recent call last):",
        "2026-01-01T00:00:00.000Z CRITICAL tandemmq.runtime.tasks task.failed name=flush",
        "asyncio Task exception was never retrieved",
    ],
)
def test_an_unhandled_exception_is_seen_in_the_log(line: str) -> None:
    assert BAD_LOG.search(f"2026-01-01T00:00:00.000Z INFO x broker.started a=1\n{line}\nmore")


def test_log_line_about_a_bad_peer_is_not_a_fault() -> None:
    line = "2026-01-01T00:00:00.000Z WARNING x channel.closed_by_bad_frame reason='a frame is 2 bytes long'\n"
    assert BAD_LOG.search(line) is None
