"""`tandemmq store` as a user runs it: on a broker's own store, with faults, and while the broker runs."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tandemmq.cli import app
from tandemmq.client import ReceivedMessage
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import MessageStore, StoreOptions
from tandemmq.testing import BlockingCluster

LOG_FILE_BYTES = 65_536
SETTINGS = f"""
mappedFileSizeCommitLog={LOG_FILE_BYTES}
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=300
"""
RECORD_COUNT = 400


async def write(root: Path) -> None:
    options = StoreOptions(
        root=root,
        commit_log_file_bytes=LOG_FILE_BYTES,
        consume_queue_file_bytes=2000,
        key_index_slot_count=100,
        key_index_entry_count=300,
    )
    for _ in range(2):
        store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
        for number in range(RECORD_COUNT if not store.max_log_offset else 0):
            record = NewRecord(
                topic="Orders" if number % 3 else "Returns",
                queue_id=number % 2,
                body=b"%08d" % number * 60,
                properties=encode_properties({"KEYS": f"k{number}"}),
                keys=f"k{number}",
                born_at_ms=0,
                born_host=bytes(8),
            )
            store.appender.append([record], lambda _: None)
            await asyncio.sleep(0)
        await store.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("command") / "store"
    asyncio.run(write(root))
    (root.parent / "broker.conf").write_text(SETTINGS)
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    shutil.copy(original.parent / "broker.conf", tmp_path)
    return Path(shutil.copytree(original, tmp_path / "store"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["store", *map(str, arguments)])


def config_of(root: Path) -> list[object]:
    return ["-c", root.parent / "broker.conf"]


def parsed(result: Result) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def flip_body(root: Path) -> tuple[Path, int]:
    """Flips a bit of a body in the middle of the log; returns its file and position."""
    path = sorted((root / "commitlog").iterdir())[1]
    at = path.read_bytes().index(b"0" * 5, 30_000)
    flip(path, at)
    return path, at


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def cut_aside(root: Path, end: int) -> Path:
    """Copies the first `end` bytes of the log to a file, as a switch would have cut them; returns the
    file.
    """
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    kept = root / "divergent" / f"7-0-{end}"
    kept.parent.mkdir()
    kept.write_bytes(log[:end])
    return kept


def test_divergent_messages_are_listed(root: Path) -> None:
    assert run("divergent", root).stdout == "nothing was cut\n"
    # It spans the end of a file, and its last record is incomplete.
    kept = cut_aside(root, 2 * LOG_FILE_BYTES - 100)
    (kept.parent / "notes.txt").write_text("somebody's")
    result = run("divergent", root)
    assert result.exit_code == 0, result.output
    first, *lines, last = result.stdout.splitlines()
    assert first == f"{kept}: bytes 0 to {2 * LOG_FILE_BYTES - 100} of term 7"
    assert last == f"{len(lines)} messages in 1 files"
    assert len(lines) > 100
    assert "Returns/0@0" in lines[0]
    assert lines[0].endswith("k0  480 bytes")
    values = parsed(run("divergent", root, "--json", "--topic", "Orders"))
    (told,) = values["files"]
    assert (told["epoch"], told["begin"], told["kept_bytes"]) == (7, 0, 2 * LOG_FILE_BYTES - 100)
    assert {message["topic"] for message in told["messages"]} == {"Orders"}
    assert told["messages"][0]["body"] == "00000001" * 60
    assert told["messages"][0]["properties"]["KEYS"] == "k1"
    assert told["messages"][0]["keys"] == ["k1"]
    assert "log_offset" in told["messages"][0]
    assert "broker" not in told["messages"][0]


def test_a_directory_that_is_none_has_no_tails(tmp_path: Path) -> None:
    result = run("divergent", tmp_path / "none")
    assert result.exit_code == 2
    assert "is not a directory" in result.stderr


def test_divergent_messages_are_resent(root: Path) -> None:
    kept = cut_aside(root, 4_000)
    with BlockingCluster() as cluster:
        cluster.create_topic("Orders")
        result = run("divergent", root, "--topic", "Orders", "--resend", cluster.name_servers)
        assert result.exit_code == 0, result.output
        count = int(result.stdout.splitlines()[-1].split()[0])
        assert result.stdout.splitlines()[-1] == f"{count} messages sent again"
        with cluster.consumer("Orders") as consumer:
            got: list[ReceivedMessage] = []
            while len(got) < count:
                got += consumer.poll(32, 5.0)
    assert {message.body[:8] for message in got} <= {b"%08d" % number for number in range(20)}
    assert {key for message in got for key in message.keys} == {f"k{int(one.body[:8])}" for one in got}
    assert kept.exists()


def test_clean_store_ends_with_zero_and_a_table(root: Path) -> None:
    before = content(root)
    result = run("check", root, *config_of(root))
    assert result.exit_code == 0, result.output
    assert f"{RECORD_COUNT} records" in result.stdout
    assert "4 queues, 400 entries" in result.stdout
    assert "400 entries" in result.stdout
    assert "MB/s" in result.stdout
    assert result.stdout.rstrip().endswith("clean")
    assert content(root) == before


def test_flipped_bit_is_named_by_file_offset_and_topic(root: Path) -> None:
    path, at = flip_body(root)
    result = run("check", root, *config_of(root))
    assert result.exit_code == 1
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("damage: "))
    assert line.startswith(f"damage: {path} bytes ")
    assert "the checksum does not match (topic " in line
    assert "damaged: 1 ranges" in result.stdout
    values = parsed(run("check", root, *config_of(root), "--json"))
    assert (values["is_clean"], values["damage_count"], values["record_count"]) == (False, 1, RECORD_COUNT)
    (found,) = values["findings"]
    assert found["offset"] < at < found["offset"] + found["size_bytes"]
    assert found["topic"] in ("Orders", "Returns")
    assert run("check", root, *config_of(root), "--no-crc").exit_code == 0


def test_store_command_exits_with_2_and_one_line_if_the_store_cannot_be_read(tmp_path: Path) -> None:
    for arguments in (["check", tmp_path / "none"], ["repair", tmp_path]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("tandemmq: ")
        assert len(result.stderr.splitlines()) == 1
    (tmp_path / "broker.conf").write_text("maxIndexNumb=3")
    result = run("check", tmp_path, "-c", tmp_path / "broker.conf")
    assert result.exit_code == 2
    assert "maxIndexNumb" in result.stderr


def test_repair_makes_what_the_broker_wrote(original: Path, root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    flip(next((root / "index").iterdir()), 41)
    assert run("check", root, *config_of(root)).exit_code == 1
    result = run("repair", root, *config_of(root))
    assert result.exit_code == 0, result.output
    assert "Orders/0: made," in result.stdout
    assert "key index: 2 files made, there were 2" in result.stdout
    assert "repaired: " in result.stdout
    assert content(root) == content(original)
    assert "nothing to change" in run("repair", root, *config_of(root)).stdout
    values = parsed(run("repair", root, *config_of(root), "--json"))
    assert values["changes"] == []
    counts = {"record_count", "log_bytes", "queue_count", "key_count"}
    assert values.keys() == {"is_refused", "changes", "warnings", "findings"} | counts
    assert all(values[name] > 0 for name in counts)


def test_repair_refuses_a_damaged_log_until_told(root: Path) -> None:
    flip_body(root)
    shutil.rmtree(root / "consumequeue" / "Orders")
    before = content(root)
    result = run("repair", root, *config_of(root))
    assert result.exit_code == 1
    assert "the checksum does not match" in result.stdout
    assert "refused: the CommitLog is damaged" in result.stdout
    assert content(root) == before
    assert run("repair", root, *config_of(root), "--accept-damage").exit_code == 0
    assert len(parsed(run("check", root, *config_of(root), "--json"))["findings"]) == 1


def test_log_that_lies_elsewhere_and_index_without_need(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "log")
    place = ["--commitlog", tmp_path / "log"]
    assert run("check", root, *place, *config_of(root)).exit_code == 0
    shutil.rmtree(root / "index")
    assert run("repair", root, *place, *config_of(root), "--no-index").exit_code == 0
    assert not (root / "index").exists()
    assert run("repair", root, *place, *config_of(root), "--index").exit_code == 0
    assert len(list((root / "index").iterdir())) == 2
    assert run("check", root, *place, *config_of(root)).exit_code == 0


@contextmanager
def running_broker(root: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tandemmq", "broker"]
    for setting in ("bindAddress=127.0.0.1", "listenPort=0", "brokerName=b", f"storePathRootDir={root}"):
        command += ["--set", setting]
    for setting in SETTINGS.split():
        command += ["--set", setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


@pytest.mark.process
def test_store_of_a_running_broker_is_refused(root: Path) -> None:
    with running_broker(root):
        for command in ("check", "repair"):
            result = run(command, root, *config_of(root))
            assert result.exit_code == 2
            assert "lock" in result.stderr
            assert len(result.stderr.splitlines()) == 1
    assert run("check", root, *config_of(root)).exit_code == 0
    shutil.rmtree(root / "consumequeue")
    assert run("repair", root, *config_of(root)).exit_code == 0
    with running_broker(root):
        pass
    assert run("check", root, *config_of(root)).exit_code == 0


@pytest.mark.process
def test_progress_is_shown_on_a_terminal_only(root: Path) -> None:
    command = [sys.executable, "-m", "tandemmq", "store", "check", str(root), *map(str, config_of(root))]
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert plain.stderr == ""
    terminal, end = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end) as process:
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert process.wait() == 0
    os.close(terminal)
    assert b"CommitLog" in shown
