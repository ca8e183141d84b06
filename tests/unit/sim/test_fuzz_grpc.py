"""The fuzzer's gRPC proxy: every rpc is sent, by the dice and nothing else, and a fault is found."""

from __future__ import annotations

import pytest

from sim.dice import Dice
from sim.fuzz import grpc_proxy
from sim.fuzz.grpc_proxy import ProxyVictim, run_http2_batch, run_rpc_batch
from sim.fuzz.grpc_requests import make_body, make_session, rpcs, split_frames
from tandemmq.proxy.routing import RoutingHandlers

NOW_MS = 1_700_000_000_000


def test_every_rpc_has_requests_that_can_be_decoded() -> None:
    dice = Dice(1)
    assert len(rpcs()) == 17
    for rpc in rpcs():
        bodies = [make_body(rpc, NOW_MS, dice) for _ in range(20)]
        assert any(rpc.request.FromString(body).ByteSize() for body in bodies if _decodes(rpc.request, body))


def _decodes(shape: object, body: bytes) -> bool:
    try:
        shape.FromString(body)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  # the library's DecodeError has no typed import
        return False
    return True


def test_the_same_dice_make_the_same_sessions_and_others_do_not() -> None:
    def throw(seed: int) -> list[bytes]:
        return make_session(NOW_MS, Dice(seed))[0]

    assert throw(1) == throw(1) != throw(2)


def test_frames_are_cut_at_their_lengths() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    frame = (2).to_bytes(3) + bytes(6) + b"ab"
    assert split_frames(preface + frame + frame) == [preface, frame, frame]


async def test_some_batches_find_nothing() -> None:
    victim = ProxyVictim()
    for seed in range(2):
        assert not (await run_http2_batch(victim, Dice(seed))).is_silent
        assert not (await run_rpc_batch(victim, Dice(seed))).is_silent
    assert victim.fault() is None


async def test_a_bug_of_a_handler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RoutingHandlers, "handle_query_route", fail)
    victim = ProxyVictim()
    await run_rpc_batch(victim, Dice(1))
    assert "an internal error" in (victim.fault() or "")


async def test_a_call_without_an_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_proxy._Client, "data_received", lambda _client, _data: None)
    assert (await run_rpc_batch(ProxyVictim(), Dice(1))).is_silent
