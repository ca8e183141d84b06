"""The tools that read Spark pipelines."""

from __future__ import annotations

from pathlib import Path

from managed_cluster import managed_cluster
from tandemmq.mcp.answers import UNTRUSTED
from unit.mcp.mcp_client import read


async def test_pipelines_are_read_from_their_folder(tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text(
        '{"event": "started", "topic": "Orders", "out": "/data/orders", "rows_total": 5, "bytes_total": 9}\n'
        '{"event": "batch", "batch": 0, "rows": 5, "lag": 12, "rate": 3, "seconds": 1.5, "bad": 0}\n'
        '{"event": "batch", "batch": 1, "rows": 5, "lag": 2, "rate": 3, "seconds": 1.5, "bad": 0}\n'
    )
    async with managed_cluster() as managed:
        found = await read(managed.tools, "list_pipelines", pipelines=tmp_path, search="orders")
        assert found["note"] == UNTRUSTED
        [one] = found["untrusted"]["pipelines"]
        assert (one["pipeline"], one["state"], one["lag"]) == ("orders", "running", 2)
        found = await read(managed.tools, "describe_pipeline", pipelines=tmp_path, pipeline="orders", limit=1)
        assert [one["batch"] for one in found["untrusted"]["batches"]] == [1]
        assert found["untrusted"]["more_batches"] == 1
        missing = await read(managed.tools, "describe_pipeline", pipelines=tmp_path, pipeline="none")
        assert "there is no pipeline 'none'" in missing
        unreadable = await read(managed.tools, "list_pipelines", pipelines=tmp_path / "nowhere")
        assert "cannot be read" in unreadable
        assert "nknown tool" in await read(managed.tools, "list_pipelines")
