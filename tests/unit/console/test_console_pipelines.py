"""The pages of Spark pipelines, on a cluster in this process."""

from __future__ import annotations

from pathlib import Path

from managed_cluster import managed_cluster
from unit.console.console_client import open_browser


async def test_pipelines_are_shown_from_their_folder(tmp_path: Path) -> None:
    events = (
        '{"event": "started", "topic": "Orders", "out": "/data/<b>", "rows_total": 5, "bytes_total": 9}\n'
        '{"event": "batch", "batch": 0, "rows": 5, "lag": 12, "rate": 3, "seconds": 1.5, "bad": 0}\n'
    )
    (tmp_path / "orders.jsonl").write_text(events)
    async with managed_cluster() as managed:
        async with open_browser(managed.cluster.name_servers, pipelines=tmp_path) as browser:
            page = (await browser.get("/pipelines")).text
            assert "running" in page
            assert "/data/&lt;b&gt;" in page
            assert "Last batches" in (await browser.get("/pipelines/orders")).text
            assert (await browser.get("/pipelines/missing")).status_code == 404
        async with open_browser(managed.cluster.name_servers) as browser:
            assert "--pipelines DIR" in (await browser.get("/pipelines")).text
