"""`tandemmq bench client` measures every case against a cluster that it is given."""

from __future__ import annotations

from pathlib import Path

from client_rig import running_rig

from tandemmq.bench.client_bench import measure_client
from tandemmq.bench.java.measure import CLIENT_CASES
from tandemmq.client import Admin


async def test_every_case_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker()
        found = [one async for one in measure_client(rig.namesrv, body_bytes=64, seconds=0.05)]
        async with Admin(rig.namesrv) as admin:
            assert not any(topic.startswith("BenchClient") for topic in await admin.topics())
    assert [one.case for one in found] == list(CLIENT_CASES), "Java's client does the same beside it"
    for one in found:
        assert one.error == ""
        assert one.message_count > 0
        if one.case.startswith("send"):
            assert one.p50_us is not None
            assert one.p99_us is not None
            assert 0 < one.p50_us <= one.p99_us
