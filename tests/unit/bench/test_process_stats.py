"""Processor time of a tree of processes: children count, the left-out ones do not."""

from __future__ import annotations

import os
import subprocess
import sys

from tandemmq.bench.process_stats import processor_seconds, tree_seconds

BURN = """
import subprocess, sys, time
while time.process_time() < 0.2: pass
if len(sys.argv) > 1:
    pipe = subprocess.PIPE
    inner = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=pipe, stdout=pipe)
    inner.stdout.readline()
print(flush=True)
sys.stdin.read()
"""


def test_grandchildren_count_and_left_out_trees_do_not() -> None:
    command = [sys.executable, "-c", BURN, BURN]
    before = tree_seconds(os.getpid())
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own = processor_seconds(child.pid)
        assert own >= 0.1
        assert tree_seconds(os.getpid()) - before >= own + 0.1
        assert tree_seconds(child.pid) >= 0.1
        assert tree_seconds(os.getpid(), without=frozenset([child.pid])) <= before
