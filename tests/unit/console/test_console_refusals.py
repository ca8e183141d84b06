"""The page of rejected requests, on a cluster in this process."""

from __future__ import annotations

from managed_cluster import managed_cluster
from tandemmq.manage.cluster import read_cluster
from tandemmq.manage.groups import change_group
from tandemmq.manage.refusals import counts_of, read_refusals
from tandemmq.manage.tools import find_targets
from unit.console.console_client import open_browser
from waits import until


async def test_rejected_requests_of_consumers_are_listed_with_the_reason() -> None:
    async with managed_cluster() as managed, open_browser(managed.cluster.name_servers) as browser:
        assert "nothing rejected" in (await browser.get("/refusals")).text
        await managed.cluster.create_topic("Orders")
        stopped = {"is_consume_enabled": False}
        await change_group(managed.tools, await find_targets(managed.tools), "billing", stopped)
        [target] = await find_targets(managed.tools)
        reading = await read_cluster(managed.tools, 0)
        async with managed.cluster.consumer("Orders", "billing"):

            async def is_recorded() -> bool:
                return bool((await read_refusals(managed.tools, reading)).rows)

            await until(is_recorded)
        (holder, refusal), *_ = (await read_refusals(managed.tools, reading)).rows
        assert (holder, refusal.group) == (target, "billing")
        page = (await browser.get("/refusals?q=billing")).text
        assert refusal.request in page
        assert "NO_PERMISSION" in page


def test_brokers_that_report_no_counts_have_none() -> None:
    assert counts_of({"brokerVersionDesc": "V4_9_8"}) is None
    counts = counts_of({"tandemConsumerRefusals": "3", "tandemAccessDenials": "x"})
    assert counts is not None
    assert (counts.consumers, counts.denials, counts.is_quiet) == (3, 0, False)
