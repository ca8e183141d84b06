"""Descriptors: the limit, the plan, the reserve."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from few_descriptors import no_descriptor_left
from tandemmq.runtime.descriptors import RESERVE, DescriptorPlan, plan_descriptors, raise_limit
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.ports import NotOpened


@pytest.fixture
def reserve() -> Iterator[None]:
    RESERVE.hold(4)
    yield
    RESERVE.release()


@pytest.mark.parametrize(
    ("limit", "files", "replication", "plan"),
    [
        (1_048_576, 512, 256, DescriptorPlan(16_384, 512, 256)),
        (65_536, 512, 256, DescriptorPlan(16_384, 512, 256)),
        (4_096, 512, 256, DescriptorPlan(2_688, 512, 256)),
        (1_024, 512, 256, DescriptorPlan(336, 256, 48)),
        (256, 512, 256, DescriptorPlan(16, 64, 8)),
        (1_024, 0, 0, DescriptorPlan(896, 0, 0)),
    ],
)
def test_files_have_a_quarter_and_connections_the_rest(
    limit: int, files: int, replication: int, plan: DescriptorPlan
) -> None:
    assert plan_descriptors(limit, files, replication) == plan
    assert plan.is_short == (limit <= 1_024)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        limit = raise_limit()
        assert limit == min(hard, 1 << 20) or hard == resource.RLIM_INFINITY
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_short_work_borrows_from_the_reserve(tmp_path: Path, reserve: None) -> None:
    disk = RealDisk()
    file = disk.create(tmp_path / "log", 4096)
    with no_descriptor_left():
        for number in range(10):
            disk.write_atomically(tmp_path / "table", b"%d" % number)
        assert disk.read_bytes(tmp_path / "table") == b"9"
        assert disk.list(tmp_path) == ["log", "table"]
        file.pwrite(0, (b"x",))
        file.sync()  # it opens the directory
        assert bytes(file.view()[:1]) == b"x"
    file.close()


def test_without_a_reserve_nothing_is_done_and_the_error_says_so(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.create(tmp_path / "log", 4096)
    with no_descriptor_left() as taken:
        with pytest.raises(NotOpened, match="Too many open files"):
            disk.open(tmp_path / "log")
        with pytest.raises(NotOpened):
            disk.create(tmp_path / "other", 4096)
        with pytest.raises(NotOpened):
            disk.write_atomically(tmp_path / "table", b"x")
        with pytest.raises(NotOpened):
            file.sync()
        assert os.path.lexists(tmp_path / "other") is False
        os.close(taken.pop())
        file.sync()
        disk.write_atomically(tmp_path / "table", b"x")
    file.close()
