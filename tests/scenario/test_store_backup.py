"""`tandemmq store backup` and `restore`: a drill with a slave that keeps running, and the backups' faults."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from tandemmq.cli import app
from tandemmq.client import Admin, Consumer, Message, Producer
from tandemmq.config.load import MachineFacts, load_broker
from tandemmq.errors import StoreError, StoreLocked
from tandemmq.manage.tools import open_tools
from tandemmq.protocol.bodies.codec import CONFIRMED_KEY
from tandemmq.protocol.properties_file import Setting
from tandemmq.runtime.disk import RealDisk
from tandemmq.store_command import backup_files, backups
from tandemmq.store_command.backup_files import back_up, copy_back, new_store, read_manifest
from tandemmq.testing import Cluster
from tandemmq.testing.cluster import consumer_options
from tandemmq.testing.member import HOST, ClusterMember
from waits import until

LOG_FILE_BYTES = 65_536
SMALL = {"mappedFileSizeCommitLog": LOG_FILE_BYTES}


async def store(*words: object, code: int = 0) -> str:
    done = await asyncio.to_thread(CliRunner().invoke, app, ["store", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


async def bodies(cluster: Cluster, topic: str, group: str, count: int) -> list[bytes]:
    """Returns the next `count` messages of a group."""
    found: list[bytes] = []
    async with Consumer(group, cluster.name_servers, options=consumer_options()) as consumer:
        consumer.subscribe(topic)

        async def are_there() -> bool:
            for message in await consumer.poll(32, timeout_s=0.1):
                found.append(bytes(message.body))
                consumer.ack(message)
            return len(found) >= count

        await until(are_there)
        await consumer.commit()
    return found


@pytest.mark.parametrize("elected", [False, True])
async def test_a_backup_of_a_running_slave_is_restored(tmp_path: Path, elected: bool) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    async with Cluster(slave=True, elected=elected, settings=SMALL) as cluster:
        await cluster.create_topic("orders", queue_count=1)
        async with cluster.producer() as producer:
            for number in range(50):
                await producer.send(Message("orders", b"%03d" % number + os.urandom(5_000)))
            await producer.send(Message("orders", b"later", delay_ms=5_000))
            assert len(await bodies(cluster, "orders", "billing", 10)) >= 10
            address = await slave_of(cluster)
            await store("backup", backup, "-b", address)
            first = read_manifest(backup)
            with pytest.MonkeyPatch.context() as elsewhere:
                elsewhere.setattr(backups, "RealDisk", OtherMachine)
                output = await store("backup", tmp_path / "none", "-b", address, code=2)
                assert f"{address} runs on another machine: run this command there" in output
            sending = asyncio.create_task(send_more(producer))
            try:
                told = json.loads(await store("backup", backup, "-b", address, "--json"))
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        assert told["end"] >= first.end
        assert len(list((backup / "commitlog").iterdir())) >= 4
    output = json.loads(await store("restore", backup, restored, "--json"))
    assert output["is_whole"]
    assert output["end"] == told["end"]
    last = max((backup / "commitlog").iterdir())
    for number, damaged in enumerate([backup / "config" / "topics.json", last]):
        held = damaged.read_bytes()
        damaged.write_bytes(bytes(len(held)))
        await store("restore", backup, tmp_path / f"damaged{number}", code=1)
        damaged.write_bytes(held)
    await find_each_flipped_bit(backup, tmp_path)
    for name in ("brokerIdentity", "brokerGroup"):  # a backup is looked into as another broker
        (restored / name).unlink(missing_ok=True)
    async with Cluster() as again, broker_of(restored, again.name_servers):
        async with open_tools(again.name_servers) as tools:
            committed = await tools.cluster_admin.committed_offsets("billing", "orders")
        found = await bodies(again, "orders", "new", 50)
        while b"later" not in found:  # delivered by the cluster, or by the restored broker
            found += await bodies(again, "orders", "new", 1)
    assert [body[:3] for body in found[:50]] == [b"%03d" % number for number in range(50)]
    assert set(committed.values()) <= {None, *range(10, 51)}


class OtherMachine(RealDisk):
    """The disk of a machine on which the broker does not run."""

    def boot_id(self) -> str:
        return "6ed2a7c0-0000-0000-0000-000000000000"


async def find_each_flipped_bit(backup: Path, place: Path) -> None:
    """Flips a bit in each field of the first record's header, in its body, and in the length before it."""
    path = min((backup / "commitlog").iterdir())
    data = path.read_bytes()
    record_bytes = int.from_bytes(data[:4])
    for position in (*range(0, 92, 4), 1_000, record_bytes - 1, len(data) - 1):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        damaged = copy_back(backup, place / f"flip{position}", lambda _: None)
        assert damaged == [f"commitlog/{path.name}"], position
    path.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    output = await store("restore", backup, place / "flipped", code=1)
    assert f"{path} is missing, or not as it was copied" in output
    path.write_bytes(data)


async def slave_of(cluster: Cluster) -> str:
    """Returns the address of the slave, once it is registered and has confirmed the messages."""
    found: list[str] = []

    async def is_known() -> bool:
        async with Admin(cluster.name_servers) as admin:
            for broker in (await admin.cluster_info()).brokers.values():
                found[:] = [address for number, address in broker.addresses.items() if number]
            facts = await admin.runtime_info(found[0]) if found else {}
        return int(facts.get(CONFIRMED_KEY, "0")) > 50 * 5_000

    await until(is_known)
    return found[0]


async def send_more(producer: Producer) -> None:
    while True:
        await producer.send(Message("orders", os.urandom(5_000)))


@asynccontextmanager
async def broker_of(root: Path, name_servers: str) -> AsyncIterator[None]:
    """Runs a broker with another name on a restored store."""
    settings = {
        **{key: str(value) for key, value in SMALL.items()},
        "brokerName": "look",
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": "0",
        "haListenPort": "0",
        "storePathRootDir": str(root),
        "namesrvAddr": name_servers,
    }
    machine = MachineFacts(host_name="look", address=HOST, memory_bytes=1 << 32, home=root)
    config = load_broker({key: Setting(text, "test") for key, text in settings.items()}, machine)
    failures: list[BaseException] = []
    member = ClusterMember(config, failures.append)
    await member.start()
    try:
        yield
    finally:
        await member.stop()
    assert failures == []


# Faults


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with three files of log, of which the last is not full."""
    found = tmp_path / "root"
    (found / "commitlog").mkdir(parents=True)
    for number in range(3):
        (found / "commitlog" / f"{number * 100:020}").write_bytes(bytes([number + 1]) * 100)
    (found / "config").mkdir()
    (found / "config" / "topics.json").write_text("{}")
    (found / "config" / "topics.json.bak").write_text("old")
    (found / "abort").touch()
    return found


def make(root: Path, target: Path, end: int) -> list[int]:
    """Makes a backup; returns the sizes of the copied parts."""
    copied: list[int] = []
    log = root / "commitlog"
    back_up(root, log, target, lambda: end, copied.append, made_at_ms=1, version="1")
    return copied


def test_a_backup_has_the_log_below_the_end_and_only_its_own_files(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    assert make(root, target, 250) == [100, 100, 50]
    files = [path for path in target.rglob("*") if path.is_file() and path.name != "lock"]
    names = {path.name for path in files}
    assert names == {"backup.json", "topics.json", *(f"{number:020}" for number in (0, 100, 200))}
    assert (target / "commitlog" / f"{200:020}").read_bytes() == b"\3" * 50 + bytes(50)
    found = (path for path in target.rglob("*") if path.name != "lock")
    assert all(path.stat().st_mode & 0o077 == 0 for path in (target, *found))


def test_an_update_copies_only_what_is_new_and_drops_what_has_expired(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    make(root, target, 250)
    (root / "commitlog" / f"{0:020}").unlink()
    assert make(root, target, 300) == [50]
    assert (read_manifest(target).begin, read_manifest(target).end) == (100, 300)
    assert sorted(path.name for path in (target / "commitlog").iterdir()) == [f"{100:020}", f"{200:020}"]
    assert (target / "commitlog" / f"{200:020}").read_bytes() == b"\3" * 100


def test_an_interrupted_backup_is_no_backup(root: Path, tmp_path: Path) -> None:
    target, copied = tmp_path / "backup", list[int]()

    def stop(count: int) -> None:
        copied.append(count)
        if len(copied) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(root, root / "commitlog", target, lambda: 250, stop, made_at_ms=1, version="1")
    with pytest.raises(StoreError, match="interrupted"):
        copy_back(target, tmp_path / "new", copied.append)
    assert make(root, target, 250) == [100, 100, 50]


def test_an_update_that_fails_leaves_the_earlier_backup_whole(root: Path, tmp_path: Path) -> None:
    target, log = tmp_path / "backup", root / "commitlog"
    make(root, target, 250)
    before = files_of_backup(target)

    def stop(*_: object) -> NoReturn:
        raise StoreError("the broker has stopped")

    (root / "config" / "topics.json").write_text('{"new": 1}')
    for read_end, on_copied in ((stop, print), (lambda: 300, stop)):
        with pytest.raises(StoreError, match="has stopped"):
            back_up(root, log, target, read_end, on_copied, made_at_ms=2, version="1")
        assert files_of_backup(target) == before
    with pytest.raises(StoreError, match="is confirmed up to 240, but"):
        make(root, target, 240)
    for number in (0, 200):
        path = log / f"{number:020}"
        held = path.read_bytes()
        path.write_bytes(b"z" * 100)
        with pytest.raises(StoreError, match="another store"):
            make(root, target, 300)
        path.write_bytes(held)
    assert files_of_backup(target) == before
    assert make(root, target, 300) == [50]


def files_of_backup(target: Path) -> list[bytes]:
    """Returns the manifest, the table and the log of a backup, without what it does not count on."""
    copied = target.parent / f"look{len(list(target.parent.iterdir()))}"
    copy_back(target, copied, lambda _: None)
    log = [path.read_bytes() for path in sorted((copied / "commitlog").iterdir())]
    return [(target / "backup.json").read_bytes(), (copied / "config" / "topics.json").read_bytes(), *log]


def test_tables_are_copied_before_the_end_is_read(root: Path, tmp_path: Path) -> None:
    target, table = tmp_path / "backup", Path("config") / "topics.json"

    def read_end() -> int:
        (root / table).write_text('{"of": "a later message"}')
        return 250

    back_up(root, root / "commitlog", target, read_end, lambda _: None, made_at_ms=1, version="1")
    assert (target / table).read_text() == "{}"


def test_an_update_does_not_extend_a_damaged_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_files, "_EDGE_BYTES", 10)  # the damage lies between the compared edges
    target = tmp_path / "backup"
    make(root, target, 250)
    copy = target / "commitlog" / f"{200:020}"
    copy.write_bytes(b"\3" * 20 + b"\2" + b"\3" * 29 + bytes(50))
    (root / "commitlog" / copy.name).write_bytes(b"\3" * 100)
    with pytest.raises(StoreError, match=f"{copy} is not as it was copied: delete"):
        make(root, target, 300)
    copy.unlink()
    assert make(root, target, 300) == [100]
    assert copy_back(target, tmp_path / "new", print) == []


def test_a_restore_that_is_interrupted_leaves_no_store(root: Path, tmp_path: Path) -> None:
    new, unfinished = tmp_path / "new", tmp_path / "new.restoring"
    target = tmp_path / "backup"
    make(root, target, 250)
    seen: list[bool] = []

    def stop(_: int) -> NoReturn:
        seen.append(unfinished.exists() and not new.exists())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), new_store(new) as place:
        copy_back(target, place, stop)
    assert seen == [True]
    assert not new.exists()
    assert not unfinished.exists()
    unfinished.mkdir()  # as after a kill
    with pytest.raises(StoreError, match=f"{unfinished} is a restore that runs, or was interrupted"):
        new_store(new).__enter__()
    unfinished.rmdir()
    new.mkdir()
    with new_store(new) as place:
        (place / "commitlog").mkdir()
        assert list(new.iterdir()) == []
    assert [path.name for path in new.iterdir()] == ["commitlog"]


def test_a_full_disk_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backup_files, "sync_file", fill)
    with pytest.raises(OSError, match="No space left") as raised:
        make(root, tmp_path / "backup", 250)
    assert raised.value.filename == str(tmp_path / "backup" / "commitlog" / f"{0:020}")


def test_two_backups_to_one_directory_exclude_each_other(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"

    def read_end() -> int:
        with pytest.raises(StoreLocked):
            make(root, target, 250)
        return 250

    back_up(root, root / "commitlog", target, read_end, lambda _: None, made_at_ms=1, version="1")


async def test_a_restore_names_damaged_tables_and_a_missing_first_log_file(
    root: Path, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    make(root, target, 250)
    assert copy_back(target, tmp_path / "whole", lambda _: None) == []
    (target / "config" / "topics.json").write_text("[]")
    (target / "commitlog" / f"{0:020}").unlink()
    damaged = ["config/topics.json", f"commitlog/{0:020}"]
    assert copy_back(target, tmp_path / "new", lambda _: None) == damaged
    output = await store("restore", target, tmp_path / "again", code=1)
    assert all(f"{target}/{name} is missing, or not as it was copied" in output for name in damaged)


def test_what_is_no_backup_or_another_store_is_refused(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    make(root, target, 250)
    with pytest.raises(StoreError, match="is not empty"), new_store(root):
        pass
    (root / "commitlog" / f"{0:020}").write_bytes(b"z" * 100)
    with pytest.raises(StoreError, match="another store"):
        make(root, target, 250)
    with pytest.raises(StoreError, match="which no backup has"):
        make(root, tmp_path, 250)
    (root / "truncate.pending").touch()
    with pytest.raises(StoreError, match="about to be cut"):
        make(root, target, 250)
    (root / "truncate.pending").unlink()
    with pytest.raises(StoreError, match="no log below"):
        make(root, tmp_path / "empty", 0)


async def test_the_command_refuses_a_store_that_is_not_here(tmp_path: Path) -> None:
    assert "cannot connect" in await store("backup", tmp_path / "b", "-b", "127.0.0.1:1", code=2)
    assert "no backup.json" in await store("restore", tmp_path, tmp_path / "new", code=2)
