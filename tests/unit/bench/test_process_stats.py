"""Processor time of a tree of processes: children count, the left-out ones do not. How old one is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from bench.processes import age_seconds, tree_seconds
from tandemmq.bench.process_stats import processor_seconds

# Uses some processor time; with arguments, starts a child that does what the first of them says, tells its
# number, and waits until no process writes any more.
BURN = """
import subprocess, sys, time
while time.process_time() < 0.2: pass
inner = None
if len(sys.argv) > 1:
    pipe = subprocess.PIPE
    inner = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdin=pipe, stdout=pipe)
    inner.stdout.readline()
print(inner.pid if inner else 0, flush=True)
sys.stdin.read()
"""


def test_grandchildren_count_and_left_out_trees_do_not() -> None:
    # The tree is measured below a child of its own: others of this process may be busy at the same time.
    command = [sys.executable, "-c", BURN, BURN, BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as root:
        assert root.stdout is not None
        child = int(root.stdout.readline())
        own = processor_seconds(child)
        assert own >= 0.1
        assert tree_seconds(root.pid) >= own + 0.1
        assert tree_seconds(child) >= 0.1
        assert tree_seconds(root.pid, without=frozenset([child])) == 0


def test_age_counts_from_the_beginning_of_the_process() -> None:
    tick_s = 0.011
    before = time.monotonic()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        began = time.monotonic()
        while (asked := time.monotonic()) < began + 0.05:
            pass
        age = age_seconds(process.pid)
        now = time.monotonic()
    assert asked - began - tick_s <= age <= now - before + tick_s


def test_processor_time_is_the_clock_that_a_process_has_of_itself() -> None:
    with open("/dev/zero", "rb") as zeros:
        zeros.read(1 << 20)  # the kernel's work for it counts, too
    before = time.process_time()
    found = processor_seconds(os.getpid())
    assert before <= found <= time.process_time()
