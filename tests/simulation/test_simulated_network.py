"""The simulated loop and network keep TCP's promises, and break connections as machines do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from sim.cluster.loop import SimClock, SimLoop, SimProcess, SimulationStuck, run_simulated, unwind
from sim.cluster.network import Fabric, Host, HostNetwork
from sim.cluster.outside import Outside
from sim.dice import Dice

PORT = 7
HOUR_S = 3600.0


class Peer(asyncio.Protocol):
    """Records everything that it receives."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.pieces: list[bytes] = []
        self.ends: list[Exception | None] = []
        self.has_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> None:
        self.has_eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Machine:
    """A host with one process."""

    def __init__(self, fabric: Fabric, clock: SimClock, name: str) -> None:
        self.fabric = fabric
        self.host: Host = fabric.add_host(name)
        self.process = SimProcess(name)
        self.network = HostNetwork(fabric, self.host, self.process, clock)

    def lose(self, *, is_power_cut: bool) -> None:
        self.process.end()
        self.fabric.end_process(self.process, is_power_cut=is_power_cut)
        self.host.is_up = not is_power_cut


class Wire:
    """A client's machine connected to a server's."""

    def __init__(self, loop: SimLoop, seed: int = 1) -> None:
        self.loop = loop
        self.clock = SimClock(loop)
        self.fabric = Fabric(loop, Dice(seed))
        self.client = Machine(self.fabric, self.clock, "client")
        self.server = Machine(self.fabric, self.clock, "server")
        self.near, self.far = Peer(), Peer()

    async def connect(self, timeout_s: float = 3.0) -> None:
        await self.server.network.listen("0.0.0.0", PORT, lambda: self.far)
        await self.client.network.connect(self.server.host.ip, PORT, lambda: self.near, timeout_s)

    def block(self) -> None:
        self.fabric.block(self.client.host.ip, self.server.host.ip)

    def unblock(self) -> None:
        self.fabric.unblock(self.client.host.ip, self.server.host.ip)


def simulate(scenario: Callable[[Wire], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def main(loop: SimLoop) -> None:
        await scenario(Wire(loop, seed))

    run_simulated(main)


def test_an_hour_passes_at_once() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.clock.sleep(HOUR_S)
        assert wire.loop.time() == pytest.approx(HOUR_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HOUR_S):
                await asyncio.Event().wait()
        assert wire.loop.time() == pytest.approx(2 * HOUR_S)

    simulate(scenario)


def test_waiting_for_nothing_is_told() -> None:
    async def scenario(wire: Wire) -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationStuck, match="nothing is left"):
        simulate(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_whole_and_in_order_in_any_pieces(seed: int) -> None:
    async def scenario(wire: Wire) -> None:
        wire.fabric.cut_percent = 60
        await wire.connect()
        sent = b"".join(b"%d," % number for number in range(500))
        for start in range(0, len(sent), 37):
            wire.near.write(sent[start : start + 37])
            if start % 5 == 0:
                await wire.clock.sleep(0.001)
        await wire.clock.sleep(1)
        assert b"".join(wire.far.pieces) == sent
        assert max(map(len, wire.far.pieces)) > 37  # joined
        assert min(map(len, wire.far.pieces)) < 37  # and cut

    simulate(scenario, seed)


def test_blocked_way_holds_bytes_back_and_tells_nobody() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        wire.block()
        wire.near.write(b"late")
        wire.far.write(b"the other way is open")
        await wire.clock.sleep(60)
        assert wire.far.pieces == []
        assert wire.near.pieces == [b"the other way is open"]
        wire.unblock()
        await wire.clock.sleep(2)
        assert wire.far.pieces == [b"late"]
        assert wire.far.ends == wire.near.ends == []

    simulate(scenario)


def test_connecting_over_a_blocked_way_times_out_and_to_a_closed_port_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        with pytest.raises(ConnectionRefusedError):
            await wire.client.network.connect(wire.server.host.ip, PORT, Peer, 3.0)
        wire.block()
        begun_at = wire.loop.time()
        with pytest.raises(TimeoutError):
            await wire.connect(3.0)
        assert wire.loop.time() - begun_at == pytest.approx(3.0)

    simulate(scenario)


def test_closing_sends_what_is_queued_then_both_ends_hear_it() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        wire.near.write(b"last words")
        assert wire.near.transport is not None
        wire.near.transport.close()
        await wire.clock.sleep(1)
        assert b"".join(wire.far.pieces) == b"last words"
        assert wire.far.has_eof
        assert (wire.near.ends, wire.far.ends) == ([None], [None])
        assert not wire.fabric.ends

    simulate(scenario)


def test_killed_process_is_heard_of_and_takes_no_further_step() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        steps = []
        wire.loop.call_later(1, steps.append, "alive", context=wire.server.process.context)
        wire.server.lose(is_power_cut=False)
        await wire.clock.sleep(5)
        assert steps == []
        assert len(wire.near.ends) == 1
        assert wire.far.ends == []  # no process is left to receive it
        assert await unwind(wire.loop, [wire.server.process]) == []

    simulate(scenario)


def test_host_without_power_is_silent_until_it_answers_with_a_reset() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        wire.server.lose(is_power_cut=True)
        wire.near.write(b"anybody there?")
        await wire.clock.sleep(60)
        assert wire.near.ends == []
        wire.fabric.power_up(wire.server.host)
        await wire.clock.sleep(2)
        assert [type(end) for end in wire.near.ends] == [ConnectionResetError]

    simulate(scenario)


def test_stalled_process_hears_everything_afterwards_in_order() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.connect()
        wire.loop.stall(wire.server.process)
        for number in range(3):
            wire.near.write(b"%d" % number)
            await wire.clock.sleep(1)
        assert wire.far.pieces == []
        wire.loop.resume(wire.server.process)
        await wire.clock.sleep(0.1)
        assert wire.far.pieces == [b"0", b"1", b"2"]

    simulate(scenario)


def test_reader_that_pauses_holds_up_its_writer() -> None:
    class Writer(Peer):
        is_paused = False

        def pause_writing(self) -> None:
            self.is_paused = True

        def resume_writing(self) -> None:
            self.is_paused = False

    async def scenario(wire: Wire) -> None:
        writer = wire.near = Writer()
        await wire.connect()
        await wire.clock.sleep(0.1)
        assert wire.far.transport is not None
        wire.far.transport.pause_reading()
        for _ in range(40):
            writer.write(b"x" * 10_000)
        await wire.clock.sleep(1)
        assert writer.is_paused
        wire.far.transport.resume_reading()
        await wire.clock.sleep(1)
        assert not writer.is_paused
        assert len(b"".join(wire.far.pieces)) == 400_000

    simulate(scenario)


def test_outside_hosts_reach_brokers_at_aliases_only() -> None:
    async def scenario(wire: Wire) -> None:
        wrong: list[str] = []
        wire.fabric.on_wrong_address = wrong.append
        outside = Outside(Dice(1), wire.fabric)
        registered = (wire.server.host.ip, PORT)
        alias = outside.add_alias(*registered)
        wire.client.host.is_outside = True
        await wire.server.network.listen("0.0.0.0", PORT, lambda: wire.far)
        near = await wire.client.network.connect(*alias, lambda: wire.near, 3.0)
        assert near.get_extra_info("peername") == alias
        wire.near.write(b"from outside")
        await wire.clock.sleep(1)
        assert wire.far.pieces == [b"from outside"]
        assert not wrong
        with pytest.raises(ConnectionRefusedError):
            await wire.client.network.connect(*registered, Peer, 3.0)
        assert len(wrong) == 1
        wire.client.host.is_outside = False
        await wire.client.network.connect(*registered, Peer, 3.0)
        assert len(wrong) == 1
        await wire.client.network.connect(*alias, Peer, 3.0)
        assert len(wrong) == 2
        outside.remove_alias(alias)
        with pytest.raises(TimeoutError):
            await wire.client.network.connect(*alias, Peer, 3.0)

    simulate(scenario)
