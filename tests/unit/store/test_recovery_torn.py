"""A last record of which only the beginning was written, for every cut position."""

from __future__ import annotations

import pytest
from store_rig import ROOT, Rig, bodies, record

from tandemmq.units import align_up

FIRST = ROOT / "commitlog" / ("0" * 20)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("properties", [True, False])
async def test_every_cut_of_the_last_record_loses_only_that_record(is_clean: bool, properties: bool) -> None:
    """The body's checksum does not cover topic and properties, which may be torn too.

    After a clean stop only another broker's log can end like that, since the end of ours is known.
    """
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"first"), record(b"second"))
    end = store.max_log_offset
    last = record(b"last" * 5, keys="k1 k2", tags="TagA") if properties else record(b"last" * 5)
    rig.put(store, last)
    size = store.max_log_offset - end
    whole = rig.disk.read_bytes(FIRST)[end : end + size]
    await store.close()
    for cut in range(size + 1):
        file = rig.disk.open(FIRST)
        file.pwrite(end, (whole[:cut] + bytes(size - cut),))
        file.close()
        rig.note_durable(None if is_clean else end)
        if not is_clean:
            rig.disk.write_atomically(ROOT / "abort", b"1")
        store = await rig.open()
        expected = [b"first", b"second"]
        if not any(whole[cut:]):
            expected.append(b"last" * 5)
        assert bodies(store) == expected, cut
        assert store.queue_max("T", 0) == len(expected)
        await store.close()


@pytest.mark.parametrize("segment_bytes", [16_384, 20_000])
async def test_a_sector_that_a_power_cut_took_from_properties_ends_the_log(segment_bytes: int) -> None:
    """Sectors are aligned to the file, even if the file's size is not a multiple of them."""
    rig = Rig(commit_log_file_bytes=segment_bytes)
    store = await rig.open()
    while store.max_log_offset < segment_bytes + 1_000:
        rig.put(store, record(b"x" * 700))
    before = bodies(store)
    begin = store.max_log_offset
    rig.put(store, record(b"torn", keys="k" * 1_800), record(b"behind it"))
    await store.close()
    file = rig.disk.open(ROOT / "commitlog" / f"{segment_bytes:020}")
    sector = align_up(begin - segment_bytes + 200, 512)
    assert set(rig.disk.read_bytes(ROOT / "commitlog" / f"{segment_bytes:020}")[sector : sector + 512]) == {
        ord("k")
    }
    file.pwrite(sector, (bytes(512),))
    file.close()
    rig.note_durable(begin)
    rig.disk.write_atomically(ROOT / "abort", b"1")
    store = await rig.open()
    assert bodies(store) == before
    assert store.max_log_offset == begin
    await store.close()
