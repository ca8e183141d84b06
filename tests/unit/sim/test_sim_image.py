"""The behaviour of the simulated platter: sectors, directories, and fsyncs that cover only earlier writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.dice import Dice
from sim.image import PAGE_BYTES, SECTOR_BYTES, Image, Tear

PATH = Path("/store/file")


def image_with_a_durable_file(size: int = 4 * PAGE_BYTES) -> Image:
    image = Image()
    image.create(PATH, size).sync(0, 0)
    image.sync_directory(PATH.parent)
    return image


@pytest.mark.parametrize("tear", list(Tear))
@pytest.mark.parametrize("seed", range(20))
def test_synced_bytes_survive_every_power_cut(tear: Tear, seed: int) -> None:
    image = image_with_a_durable_file()
    node = image.files[PATH]
    image.write(node, 100, b"a" * 2000)
    node.sync(image.write_number, image.write_number)
    image.write(node, 3000, b"b" * 5000)
    image.power_cut(Dice(seed), tear)
    data = image.files[PATH].data
    assert data[100:2100] == b"a" * 2000
    assert set(data[3000:8000]) <= {0, ord("b")}


@pytest.mark.parametrize(("tear", "kept"), [(Tear.NOTHING, 0), (Tear.EVERYTHING, 5000)])
def test_the_extreme_power_cuts(tear: Tear, kept: int) -> None:
    image = image_with_a_durable_file()
    image.write(image.files[PATH], 100, b"a" * 5000)
    image.power_cut(Dice(0), tear)
    assert image.files[PATH].data.count(b"a") == kept


def test_sectors_are_whole_and_any_of_them_may_be_missing() -> None:
    seen = set()
    for seed in range(30):
        image = image_with_a_durable_file()
        image.write(image.files[PATH], 0, b"a" * (4 * SECTOR_BYTES))
        image.power_cut(Dice(seed), Tear.SECTORS)
        data = image.files[PATH].data
        sectors = [bytes(data[i * SECTOR_BYTES : (i + 1) * SECTOR_BYTES]) for i in range(4)]
        assert set(sectors) <= {bytes(SECTOR_BYTES), b"a" * SECTOR_BYTES}
        seen.add(tuple(sector[0] for sector in sectors))
    assert len(seen) > 8


def test_a_page_keeps_all_of_its_sectors_or_none() -> None:
    for seed in range(30):
        image = image_with_a_durable_file()
        image.write(image.files[PATH], 0, b"a" * PAGE_BYTES)
        image.power_cut(Dice(seed), Tear.PAGES)
        assert image.files[PATH].data.count(b"a") in (0, PAGE_BYTES)


def test_an_older_version_of_a_sector_may_come_back() -> None:
    seen = set()
    for seed in range(60):
        image = image_with_a_durable_file()
        for letter in b"abc":
            image.write(image.files[PATH], 0, bytes([letter]))
        image.power_cut(Dice(seed), Tear.SECTORS)
        seen.add(image.files[PATH].data[0])
    assert seen == {0, *b"abc"}


def test_an_fsync_does_not_cover_what_was_written_while_it_ran() -> None:
    image = image_with_a_durable_file()
    node = image.files[PATH]
    image.write(node, 0, b"early")
    begun = image.write_number
    image.write(node, SECTOR_BYTES, b"late")
    begun_in_thread = image.write_number
    image.write(node, 2 * SECTOR_BYTES, b"own")
    node.sync(begun, begun_in_thread)
    image.power_cut(Dice(0), Tear.NOTHING)
    data = image.files[PATH].data
    assert data[:5] == b"early"
    assert data[SECTOR_BYTES] == 0
    assert data[2 * SECTOR_BYTES : 2 * SECTOR_BYTES + 3] == b"own"


def test_pages_that_a_failed_fsync_dropped_are_never_written_again() -> None:
    image = image_with_a_durable_file()
    node = image.files[PATH]
    image.write(node, 0, b"dropped")
    node.drop(image.write_number)
    node.sync(image.write_number, image.write_number)
    assert node.data[:7] == b"dropped"
    image.power_cut(Dice(0), Tear.EVERYTHING)
    assert not any(image.files[PATH].data)


def test_writing_a_dropped_page_again_makes_it_dirty_again() -> None:
    image = image_with_a_durable_file()
    node = image.files[PATH]
    image.write(node, 0, b"dropped")
    node.drop(image.write_number)
    image.write(node, 0, b"dropped")
    node.sync(image.write_number, image.write_number)
    image.power_cut(Dice(0), Tear.NOTHING)
    assert image.files[PATH].data[:7] == b"dropped"


def test_directory_changes_are_lost_from_the_end() -> None:
    names = [Path(f"/store/{n}") for n in range(4)]
    seen = set()
    for seed in range(30):
        image = Image()
        for name in names:
            image.create(name, 10)
        image.power_cut(Dice(seed), Tear.SECTORS)
        left = sorted(image.files)
        assert left == names[: len(left)]
        seen.add(len(left))
    assert seen == {0, 1, 2, 3, 4}


def test_a_removal_that_is_not_durable_is_undone() -> None:
    image = image_with_a_durable_file()
    image.remove(PATH)
    image.power_cut(Dice(0), Tear.NOTHING)
    assert PATH in image.files
    image.remove(PATH)
    image.sync_directory(PATH.parent)
    image.power_cut(Dice(0), Tear.NOTHING)
    assert PATH not in image.files


def test_a_clone_is_independent() -> None:
    image = image_with_a_durable_file()
    image.write(image.files[PATH], 0, b"a")
    copy = image.clone()
    copy.write(copy.files[PATH], 0, b"b")
    copy.power_cut(Dice(0), Tear.EVERYTHING)
    assert image.files[PATH].data[0] == ord("a")
    image.power_cut(Dice(0), Tear.NOTHING)
    assert image.files[PATH].data[0] == 0
    assert copy.files[PATH].data[0] == ord("b")
