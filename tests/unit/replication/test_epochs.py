"""The list of terms: its operations, its file, and the point where two logs diverge (spec controller 4.4,
4.5).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.memory import MemoryDisk
from tandemmq.errors import Corrupt
from tandemmq.replication.core.epochs import (
    EPOCH_COUNT_MAX,
    EpochEntry,
    EpochList,
    conflicting_term,
    consistent_point,
    decode_epochs,
    encode_epochs,
    encode_ids,
)
from tandemmq.store.checkpoint import EpochFile

PATH = Path("/store/epochFileCheckpoint")


def terms(text: str) -> EpochList:
    """ "1-0 2-1570" -> the list."""
    pairs = (entry.split("-") for entry in text.split())
    return EpochList(tuple(EpochEntry(int(epoch), int(start)) for epoch, start in pairs))


@pytest.mark.parametrize(
    ("before", "entry", "after"),
    [
        ("", (1, 0), "1-0"),
        ("1-0", (2, 1570), "1-0 2-1570"),
        ("4-0 5-1000", (6, 1000), "4-0 6-1000"),  # term 5 wrote nothing
        ("4-0 5-1000", (6, 900), "4-0 6-900"),
        ("4-0 5-1000", (5, 1200), "4-0 5-1200"),
        ("4-0", (4, 0), "4-0"),
    ],
)
def test_a_term_replaces_what_it_contradicts(before: str, entry: tuple[int, int], after: str) -> None:
    assert terms(before).append(*entry) == terms(after)


def test_cuts_at_both_ends_and_finds_terms() -> None:
    epochs = terms("1-0 3-1200 4-2000")
    assert epochs.cut_suffix(2000) == terms("1-0 3-1200")
    assert epochs.cut_suffix(2001) == epochs
    assert epochs.cut_suffix(0) == EpochList()
    assert epochs.cut_prefix(1201) == terms("3-1200 4-2000")
    assert epochs.cut_prefix(1200) == epochs  # like RocketMQ, which cuts at the byte before the first kept
    assert epochs.cut_prefix(9999) == terms("4-2000")
    assert [epochs.find(at) for at in (0, 1199, 1200, 5000)] == [(1, 0), (1, 0), (3, 1200), (4, 2000)]
    assert terms("2-10").find(9) is None
    assert epochs.end_of(EpochEntry(1, 0), 5000) == 1200
    assert epochs.end_of(EpochEntry(4, 2000), 5000) == 5000


def test_the_oldest_terms_are_dropped_at_the_bound() -> None:
    epochs = EpochList()
    for number in range(1, EPOCH_COUNT_MAX + 4):
        epochs = epochs.append(number, number * 10)
    assert len(epochs.entries) == EPOCH_COUNT_MAX
    assert epochs.entries[0] == (4, 40)


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "point"),
    [
        pytest.param("1-0 2-1570", 2000, "1-0 2-1570", 3270, 2000, id="A behind"),
        pytest.param("1-0 2-1570", 2600, "1-0 2-1570 3-2000", 3270, 2000, id="B a tail of a deposed master"),
        pytest.param("1-0 2-1570", 2600, "1-0 3-1200 4-2000", 3270, 1200, id="C two terms missed"),
        pytest.param("5-9000", 9500, "1-0 2-1570", 3270, None, id="D nothing in common"),
        pytest.param("1-0", 2520, "2-0 3-900", 3270, 0, id="replaced before a byte was copied"),
        pytest.param("1-0 2-900", 2520, "2-0", 3270, None, id="one term with two beginnings"),
        pytest.param("4-0 5-1000", 1300, "4-0 5-1000", 1600, 1300, id="E RocketMQ's lists of an empty term"),
        pytest.param("4-0 5-1000", 1300, "4-0 6-1000", 1600, 1000, id="F our lists of it"),
        pytest.param("1-0 2-1000", 2600, "1-0 3-1200", 3270, 1000, id="our next term began before theirs"),
        pytest.param(
            "1-0 2-1570 4-3000", 2600, "1-0 2-1570 4-3000", 3270, 2600, id="a term is still to come"
        ),
        pytest.param("", 0, "1-0", 3270, 0, id="an empty log"),
        pytest.param("1-0", 100, "", 0, None, id="the master has no terms"),
        pytest.param("0-0", 900, "1-1000", 1500, 900, id="before terms, within what the master had"),
        pytest.param("0-0", 1100, "1-1000", 1500, None, id="before terms, beyond it"),
        pytest.param("0-4096", 900, "0-0 1-1000", 1500, 900, id="both before terms, other first bytes"),
        pytest.param("0-0", 1100, "0-0 1-1000", 1500, None, id="both before terms, a tail beyond them"),
        pytest.param("0-0 1-1000", 1700, "0-0 1-1000 2-1500", 2000, 1500, id="terms behind older bytes"),
    ],
)
def test_consistent_point(ours: str, our_end: int, theirs: str, their_end: int, point: int | None) -> None:
    assert consistent_point(terms(ours), our_end, terms(theirs), their_end) == point


def test_a_copy_takes_the_terms_of_its_master_behind_the_point() -> None:
    master = terms("3-1200 4-2000")
    assert terms("1-0").follow(terms("1-0 3-1200 4-2000")) == terms("1-0 3-1200 4-2000")
    assert terms("1-0").follow(master) == terms("1-0 3-1200 4-2000")
    assert EpochList().follow(master) == master
    assert terms("0-4096").follow(terms("0-0 1-1000")) == terms("0-0 1-1000"), "a list that rises"
    assert terms("1-0 3-1200 4-2000").follow(terms("1-0 3-1200")) == terms("1-0 3-1200 4-2000")


@pytest.mark.parametrize(
    ("text", "checksum"),
    [("7-7000 8-8000", 773307083), ("1-0 2-1570", 1190946436), ("0-0 1-4096", 358635031)],
)
def test_the_file_is_that_of_rocketmq(text: str, checksum: int) -> None:
    epochs = terms(text)
    data = b"2\n%d\n%s\n" % (checksum, text.replace(" ", "\n").encode())
    assert encode_epochs(epochs) == data
    assert decode_epochs(data) == epochs
    assert decode_epochs(data.replace(b"%d" % checksum, b"0", 1)) == epochs  # disables the check


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2\n",
        b"x\n0\n1-0\n",
        b"0\n0\n",
        b"2\n0\n1-0\n",
        b"1\n1\n1-0\n",
        b"1\n0\n1:0\n",
        b"1\n0\n-1-0\n",
        b"2\n0\n2-0\n1-10\n",
        b"\xff\n0\n1-0\n",
    ],
)
def test_a_damaged_file_is_not_believed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"its|it has|it lacks|is not an entry"):
        decode_epochs(data)


def test_the_backup_stands_in_for_a_damaged_file() -> None:
    disk = MemoryDisk()
    file = EpochFile(PATH, disk)
    file.load()
    assert not file.epochs
    file.save(terms("1-0"))
    file.save(terms("1-0 2-10"))
    disk.write_atomically(PATH, b"2\n0\nnonsense")
    file.load()
    assert file.epochs == terms("1-0")
    disk.write_atomically(PATH.with_name(PATH.name + ".bak"), b"")
    with pytest.raises(Corrupt, match="no backup"):
        file.load()
    file.save(EpochList())
    file.load()
    assert not file.epochs
    assert not disk.exists(PATH)


def with_ids(text: str) -> EpochList:
    """ "1-0-77 2-1570" -> the list; the term 2 has no known id."""
    found = [tuple(map(int, entry.split("-"))) for entry in text.split()]
    entries = [EpochEntry(one[0], one[1]) for one in found]
    ids = {entry: one[2] for entry, one in zip(entries, found, strict=True) if len(one) == 3}
    return EpochList(tuple(entries), ids)


def test_ids_follow_their_terms() -> None:
    epochs = with_ids("1-0-7 3-1200-8 4-2000-9")
    assert (epochs.last_id, epochs.id_of(3), epochs.id_of(5)) == (9, 8, 0)
    assert epochs.append(5, 2000, 6) == with_ids("1-0-7 3-1200-8 5-2000-6")  # term 4 wrote nothing
    assert epochs.append(5, 2000) == with_ids("1-0-7 3-1200-8 5-2000")
    assert epochs.append(4, 2000, 6) == with_ids("1-0-7 3-1200-8 4-2000-6")
    assert epochs.cut_suffix(2000) == with_ids("1-0-7 3-1200-8")
    assert epochs.cut_prefix(1201) == with_ids("3-1200-8 4-2000-9")
    assert with_ids("1-0 3-1200-8").follow(epochs) == epochs  # the copy learns the unknown id
    assert EpochList().follow(epochs) == epochs
    long = EpochList()
    for epoch in range(1, EPOCH_COUNT_MAX + 2):
        long = long.append(epoch, epoch, 100 + epoch)
    assert len(long.entries) == len(long.ids) == EPOCH_COUNT_MAX
    assert long.id_of(2) == 102


@pytest.mark.parametrize(
    ("ours", "theirs", "point", "conflict"),
    [
        ("1-0-7 2-500-8", "1-0-7 2-500-9", 500, (2, 500)),  # one number, two terms
        ("1-0-7 2-500-8", "1-0-7 2-500-8", 900, None),
        ("1-0-7 2-500", "1-0-7 2-500-9", 900, None),  # an older release wrote one of the two
        ("1-0-7 2-500-8", "1-0 2-500", 900, None),
        ("1-0-7", "1-0-6", 0, (1, 0)),  # another group: not a single byte is common
        ("1-0-7 2-500-8", "1-0-6 2-500-5 3-900-4", 0, (1, 0)),
        ("0-0 1-300-7", "0-0 1-300-6", 300, (1, 300)),
    ],
)
def test_terms_of_one_number_are_told_apart_by_their_ids(
    ours: str, theirs: str, point: int, conflict: tuple[int, int] | None
) -> None:
    mine, other = with_ids(ours), with_ids(theirs)
    assert consistent_point(mine, 900, other, 1_000) == point
    assert conflicting_term(mine, other) == conflict


IDS = PATH.with_name(PATH.name + ".ids")


def test_ids_are_kept_beside_the_file_of_rocketmq() -> None:
    disk = MemoryDisk()
    file = EpochFile(PATH, disk)
    epochs = with_ids("1-0-7 2-1570-9223372036854775807 3-1600")
    file.save(epochs)
    assert disk.read_bytes(PATH) == encode_epochs(terms("1-0 2-1570 3-1600"))
    again = EpochFile(PATH, disk)
    again.load()
    assert again.epochs == epochs
    again.save(epochs.append(4, 2000, 5).cut_suffix(1600).append(5, 1700, 6))
    again.load()
    assert again.epochs == with_ids("1-0-7 2-1570-9223372036854775807 5-1700-6")


def test_a_kill_between_the_two_files_gives_no_term_the_id_of_another() -> None:
    disk = MemoryDisk()
    file = EpochFile(PATH, disk)
    file.save(with_ids("1-0-7 2-1570-8"))
    old = disk.read_bytes(PATH)
    file.save(with_ids("1-0-7 3-1570-9"))  # the empty term 2 is replaced
    new = disk.read_bytes(PATH)
    disk.write_atomically(PATH, old)
    file.load()
    assert file.epochs == with_ids("1-0-7 2-1570-8")  # only the ids had reached the disk
    disk.write_atomically(PATH, new)
    file.load()
    assert file.epochs == with_ids("1-0-7 3-1570-9")
    for damaged in (b"", b"1\n0\n", b"x\ny\n", b"1\n2\n1-0-7\n", encode_ids({EpochEntry(1, 0): 2**63})):
        disk.write_atomically(IDS, damaged)
        file.load()
        assert file.epochs == terms("1-0 3-1570")


BACKUP = PATH.with_name(PATH.name + ".bak")


@pytest.mark.parametrize("place", ["count", "checksum", "epoch", "start"])
def test_a_damaged_file_is_completed_from_the_ids_when_its_rest_proves_the_list(place: str) -> None:
    disk = MemoryDisk()
    file = EpochFile(PATH, disk)
    file.save(with_ids("1-0-7 2-1570-8"))
    whole = with_ids("1-0-7 3-1570-9")  # the empty term 2 is replaced
    file.save(whole)
    sound = disk.read_bytes(PATH)
    at = {"count": 0, "checksum": 2, "epoch": sound.rindex(b"3-1570"), "start": sound.rindex(b"0\n")}[place]
    damaged = sound[:at] + bytes([sound[at] ^ 0x80]) + sound[at + 1 :]
    # The ids of a term that a kill kept out of the list stand beside it.
    disk.write_atomically(IDS, encode_ids({**whole.ids, EpochEntry(2, 1570): 8, EpochEntry(4, 1800): 5}))
    disk.write_atomically(PATH, damaged)
    file.load()
    assert file.epochs == whole
    for backup in (b"", None):
        if backup is None:
            disk.remove(BACKUP)
        else:
            disk.write_atomically(BACKUP, backup)
        file.load()
        assert file.epochs == whole, "the ids alone have every term"


def test_a_file_that_lost_its_last_line_is_not_taken_for_the_list_before_it() -> None:
    disk = MemoryDisk()
    file = EpochFile(PATH, disk)
    file.save(with_ids("1-0-7"))
    whole = with_ids("1-0-7 2-1570-8")
    file.save(whole)
    disk.write_atomically(PATH, disk.read_bytes(PATH).removesuffix(b"2-1570\n"))
    file.load()
    assert file.epochs == whole


def test_a_list_that_nothing_proves_is_not_made_up_of_ids(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    file = EpochFile(PATH, disk)
    file.save(with_ids("1-0-7"))
    file.save(with_ids("1-0-7 2-1570-8"))
    disk.write_atomically(PATH, b"")
    file.load()
    assert file.epochs == with_ids("1-0-7")
    assert "empty its store" in caplog.records[-1].__dict__["outcome"]
    disk.remove(BACKUP)
    with pytest.raises(Corrupt, match="empty this store"):
        file.load()
