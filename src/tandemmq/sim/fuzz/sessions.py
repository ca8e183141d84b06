"""One batch of mutated frames over one connection, up to the answer that says all of it was handled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tandemmq.protocol.catalogue import Role
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.sim.dice import Dice
from tandemmq.sim.fuzz.corpus import HA_REPORT, prologue_of, reports, requests_of
from tandemmq.sim.fuzz.mutate import fence, flip, mutate
from tandemmq.sim.fuzz.victims import Victim

FRAMES_PER_BATCH = 250
PIECE_BYTES_MAX = 8_192
FENCE_OPAQUE = 0x5EED
FENCE_SECONDS_MAX = 30.0
HA_REPORTS_PER_BATCH = 50
HA_REPORT_BYTES = HA_REPORT.size


@dataclass(frozen=True, slots=True)
class Ended:
    """How a batch went: frames sent, and whether the server hung up or stayed silent."""

    frame_count: int
    is_closed_by_server: bool = False
    is_silent: bool = False


async def run_remoting_batch(victim: Victim, role: Role, dice: Dice) -> Ended:
    """Mutated requests, sent in random pieces. Returns when the fence behind them is answered, or the
    connection ends. What nothing can follow is sent behind the fence, and the connection closed.
    """
    data, tail, frame_count = _make_stream(role, dice)
    reader, writer = await asyncio.open_connection(victim.host, victim.port)
    reading = asyncio.create_task(_read_to_fence(reader))
    try:
        await _write_in_pieces(writer, data, dice)
        async with asyncio.timeout(FENCE_SECONDS_MAX):
            is_fenced = await reading
            if is_fenced and tail:
                writer.write(tail)
                writer.write_eof()
                await _read_to_end(reader)
        return Ended(frame_count, is_closed_by_server=not is_fenced)
    except TimeoutError:
        return Ended(frame_count, is_silent=True)
    except OSError:  # it hung up while we wrote
        return Ended(frame_count, is_closed_by_server=True)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.close()


async def run_ha_batch(victim: Victim, dice: Dice) -> Ended:
    """Mutated reports of a slave; the master hangs up or keeps sending, both are right."""
    frame_count, pieces = 0, []
    for _ in range(dice.between(1, HA_REPORTS_PER_BATCH)):
        report = dice.pick(reports())
        if dice.happens(60):
            report = flip(report, dice)
        elif dice.happens(20):
            report = HA_REPORT.pack(dice.between(-(2**62), 2**62))
        pieces.append(report)
        frame_count += len(report) // HA_REPORT_BYTES
    data = b"".join(pieces)[dice.below(3) :]
    reader, writer = await asyncio.open_connection(victim.host, victim.port)
    try:
        await _write_in_pieces(writer, data, dice)
        writer.write_eof()
        async with asyncio.timeout(FENCE_SECONDS_MAX):
            await _read_to_end(reader)
        return Ended(frame_count, is_closed_by_server=True)
    except TimeoutError:
        return Ended(frame_count, is_silent=True)
    except OSError:  # it hung up while we wrote
        return Ended(frame_count, is_closed_by_server=True)
    finally:
        writer.close()


def _make_stream(role: Role, dice: Dice) -> tuple[bytes, bytes, int]:
    """The readable frames of a batch with a fence, an unreadable one or nothing, and how many they are."""
    corpus = requests_of(role)
    parts = [encode_frame(command) for command in prologue_of(role)]
    tail = b""
    while len(parts) < FRAMES_PER_BATCH and not tail:
        sent = mutate(dice.pick(corpus), corpus, dice)
        if sent.is_last:
            tail = sent.data
        elif sent.data:
            parts.append(sent.data)
    frame_count = len(parts) + bool(tail)
    return b"".join([*parts, fence(FENCE_OPAQUE)]), tail, frame_count


async def _write_in_pieces(writer: asyncio.StreamWriter, data: bytes, dice: Dice) -> None:
    position = 0
    while position < len(data):
        size = dice.between(1, PIECE_BYTES_MAX)
        writer.write(data[position : position + size])
        await writer.drain()
        position += size


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def _read_to_fence(reader: asyncio.StreamReader) -> bool:
    """True at the fence's answer, False when the server ends the connection first."""
    decoder = FrameDecoder()
    while data := await reader.read(262_144):
        for command in decoder.feed(data):
            if command.is_response and command.opaque == FENCE_OPAQUE:
                return True
    return False
