"""The pages of brokers, their settings and the audit list, on clusters with and without an elected master."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tandemmq.testing import Cluster
from unit.console.console_client import Browser, open_browser
from waits import until

# Console, brokers and controllers share one event loop: on a busy machine a page takes longer than the 1.5 s
# after which the controllers do not elect a broker that was not heard.
PATIENT = {"controllerHeartBeatTimeoutMills": 30_000}


async def audit_outcomes(browser: Browser) -> list[tuple[str, str]]:
    return [(one.action, one.outcome) for one in browser.frame.audit.entries]


async def test_elected_group_is_shown_and_handed_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with (
        Cluster(elected=True, settings=PATIENT) as cluster,
        open_browser(cluster.name_servers, audit_log=path) as browser,
    ):
        before = cluster.master_address
        page = (await browser.get("/brokers")).text
        assert "in-sync set 2 of 2" in page
        assert f"{cluster.controller_address} leads" in page
        question = await browser.get("/brokers/groups/broker-a/handover")
        assert "Make another broker the master of broker-a?" in question.text
        done = await browser.post("/brokers/groups/broker-a/handover", {})
        assert done.status_code == 303
        assert "is the master of broker-a, term" in (await browser.get("/")).text
        viewer = (await browser.frame.sessions.find("", is_click=True)).viewer
        assert viewer is not None

        async def is_seen() -> bool:  # once the new master is registered
            await viewer.sampler.read()
            return "new master" in (await browser.get("/brokers")).text

        await until(is_seen)
        assert await audit_outcomes(browser) == [("Hand over", "done")]
        assert "Hand over" in (await browser.get("/audit")).text
        assert "Terms of its log" in (await browser.get(f"/brokers/{before}")).text
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["action"], one["outcome"]) for one in lines] == [
        ("Hand over", "begun"),
        ("Hand over", "done"),
    ]
    assert path.stat().st_mode & 0o077 == 0


async def test_group_without_election_cannot_hand_over() -> None:
    async with Cluster() as cluster, open_browser(cluster.name_servers) as browser:
        answer = await browser.post("/brokers/groups/broker-a/handover", {})
        assert answer.status_code == 400
        assert (await audit_outcomes(browser))[0][1].startswith("failed: no controller")
        assert (await browser.get("/brokers/groups/none/handover")).status_code == 404


async def test_lost_broker_is_shown_within_two_seconds() -> None:
    async with Cluster(slave=True) as cluster, open_browser(cluster.name_servers) as browser:
        assert "does not answer" not in (await browser.get("/brokers")).text
        await cluster.lose_master()

        async def is_shown() -> bool:
            await browser.frame.sessions.close()  # new connections, as a console that starts now
            begun = time.monotonic()
            page = await browser.get("/brokers")
            assert time.monotonic() - begun < 2.5
            return page.status_code == 200 and ("does not answer" in page.text or "no master" in page.text)

        await until(is_shown)
        assert cluster.slave_address in (await browser.get("/brokers")).text


async def test_settings_show_the_difference_and_change() -> None:
    settings = {"fileReservedTime": "50"}
    async with Cluster(settings=settings) as cluster, open_browser(cluster.name_servers) as browser:
        page = (await browser.get("/settings")).text
        assert "fileReservedTime" in page
        assert "autoCreateTopicEnable" not in page
        assert "autoCreateTopicEnable" in (await browser.get("/settings?all=1")).text
        where = {"broker": cluster.master_address, "key": "fileReservedTime"}
        link = f"/settings/change?broker={cluster.master_address}&key=fileReservedTime"
        assert "a whole number" in (await browser.get(link)).text
        refused = await browser.get(link + "&value=never")
        assert refused.status_code == 400
        assert "fileReservedTime=never: must be" in refused.text
        assert "from <b>50</b> to <b>60</b>" in (await browser.get(link + "&value=60")).text
        assert (await browser.post("/settings/change", {**where, "value": "60"})).status_code == 303
        page = (await browser.get("/settings")).text
        assert "fileReservedTime is 60 at" in page
        fixed = {**where, "key": "brokerName", "value": "x"}
        assert (await browser.post("/settings/change", fixed)).status_code == 400


async def test_write_permission_is_taken_and_given_back() -> None:
    async with Cluster() as cluster, open_browser(cluster.name_servers) as browser:
        await cluster.create_topic("Orders")
        path = "/brokers/groups/broker-a/permission"
        assert "to consumers only?" in (await browser.get(path)).text
        assert (await browser.post(path, {"writable": "false"})).status_code == 303
        assert "broker-a is read-only for" in (await browser.get("/")).text
        assert (await browser.post(path, {"writable": "true"})).status_code == 303
        assert "broker-a is writable for" in (await browser.get("/")).text
