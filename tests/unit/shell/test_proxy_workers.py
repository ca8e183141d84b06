"""The workers of a proxy, with programs in place of the workers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tandemmq.launcher import ProcessFailed
from tandemmq.proxy.options import ProxyOptions
from tandemmq.shell import proxy_workers
from tandemmq.shell.proxy_workers import WorkerGroup

OPTIONS = ProxyOptions(listen_host="127.0.0.1", listen_port=0, worker_count=2, drain_s=1)
WORKER = """
import socket, sys, time
number, pair = map(int, sys.argv[4].partition("=")[2].split(":"))
end = {ends}[number - 1]
if end == "never_ready":
    sys.exit(3)
print("worker ready on 127.0.0.1:1", flush=True)
socket.socket(fileno=pair).recv(1)
time.sleep(600 if end == "hangs" else 0)
sys.exit(end)
"""


@asynccontextmanager
async def group_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *ends: int | str
) -> AsyncIterator[WorkerGroup]:
    """A group whose workers end with these codes, hang when they are asked to end, or are never ready."""
    program = folder / "worker.py"
    program.write_text(WORKER.format(ends=list(ends)))
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -S {program} "$@"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setattr(proxy_workers, "STOP_EXTRA_S", 0.5 if "hangs" in ends else 60)
    failures: list[BaseException] = []
    group = WorkerGroup(OPTIONS, [], failures.append)
    try:
        yield group
    finally:
        await group.stop()
    assert failures == []


@pytest.mark.parametrize(
    ("ends", "code"), [((0, 0), 0), ((0, 4), 4), (("hangs", 0), 1)], ids=["all_well", "one_failed", "killed"]
)
async def test_the_worst_code_of_the_workers_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[int | str, ...], code: int
) -> None:
    async with group_of(tmp_path, monkeypatch, *ends) as group:
        await group.start()
    assert group.exit_code == code


async def test_a_worker_that_is_never_ready_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, monkeypatch, 0, "never_ready") as group:
        with pytest.raises(ProcessFailed, match="proxy worker 2 did not start: it exited with code 3"):
            await group.start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*group.address)
