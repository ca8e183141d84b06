"""Programs that consist of a push consumer: SIGTERM ends them, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from client_rig import numbers, running_cluster, take

from waits import PATIENCE_S

# A line is one write, so that lines of several threads do not mix.
PROGRAM = """
import asyncio, sys, time
from tandemmq.client import BlockingPushConsumer, PushConsumer, PushOptions, StartFrom

options = PushOptions(start_from=StartFrom.FIRST, commit_s=60)
"""
WITH_LOOP = (
    PROGRAM
    + """
consumer = PushConsumer("CG", sys.argv[1], options=options)

@consumer.subscriber("T", worker_count=3)
async def handle(message):
    print(f"begun {message.body.decode()}\\n", end="", flush=True)
    await asyncio.sleep(0.2)
    print(f"done {message.body.decode()}\\n", end="", flush=True)

with asyncio.Runner(loop_factory=LOOP) as runner:
    runner.run(consumer.run())
"""
)
PROGRAMS = {
    "asyncio": WITH_LOOP.replace("LOOP", "asyncio.new_event_loop"),
    "uvloop": "import uvloop\n" + WITH_LOOP.replace("LOOP", "uvloop.new_event_loop"),
    "threads": PROGRAM
    + """
consumer = BlockingPushConsumer("CG", sys.argv[1], options=options)

@consumer.subscriber("T", worker_count=3, batch_count_max=4)
def handle(messages):
    for message in messages:
        print(f"begun {message.body.decode()}\\n", end="", flush=True)
    time.sleep(0.2)
    for message in messages:
        print(f"done {message.body.decode()}\\n", end="", flush=True)

consumer.run()
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_program_after_its_handlers(
    tmp_path: Path, program: str, number: signal.Signals
) -> None:
    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 100)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAMS[program],
            rig.namesrv,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                lines = [await process.stdout.readline()]
                process.send_signal(number)
                lines += [line async for line in process.stdout]
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
        found: dict[str, list[int]] = {"begun": [], "done": []}
        for line in lines:
            kind, body = line.decode().split()
            found[kind].append(int(body))
        assert sorted(found["begun"]) == sorted(found["done"])
        async with rig.consumer() as consumer:
            rest = await take(consumer, 100 - len(found["done"]))
        assert sorted(numbers(rest) + found["done"]) == list(range(100))


# The main thread blocks the signals, so the system gives them to another thread and interrupts no wait of the
# main thread: as if each signal came just before the wait.
UNINTERRUPTED = """
import signal, threading
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
def begin(message):
    print("begun", flush=True)
"""
UNNOTICED = {
    "asyncio": UNINTERRUPTED
    + """
async def handle(message):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    begin(message)

consumer = PushConsumer("CG", sys.argv[1], handle, options=options)
consumer.subscribe("T")
asyncio.run(consumer.run())
""",
    "threads": UNINTERRUPTED
    + """
consumer = BlockingPushConsumer("CG", sys.argv[1], begin, options=options)
consumer.subscribe("T")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
consumer.run()
""",
}


@pytest.mark.parametrize("program", UNNOTICED)
async def test_a_signal_that_interrupts_no_wait_ends_a_program(tmp_path: Path, program: str) -> None:
    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 1)
        text = PROGRAM + UNNOTICED[program]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", text, rig.namesrv, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert await process.stdout.readline() == b"begun\n"
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
