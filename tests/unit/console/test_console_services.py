"""The page of services that land many topics, on clusters in this process."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tandemmq.testing import Cluster
from unit.console.console_client import open_browser
from unit.console.test_console_access import USERS

ENDED = "the service has ended, or does not respond"


def write_status(out: Path, name: str = "Orders", *, age_s: int = 0) -> None:
    one = {
        "state": "running",
        "table": "t",
        "error": "",
        "next_try_seconds": None,
        "lost": 0,
        "batch_time_ms": 1,
        "total": {"rows": 1500, "size_bytes": 9, "bad": 3},
        "lag": 7,
        "p50_s": 1.5,
        "p99_s": 2.5,
    }
    failing = {
        **one,
        "state": "failing",
        "error": "disk <full>",
        "total": {"rows": 9, "size_bytes": 9, "bad": 0},
        "lag": 8,
        "next_try_seconds": 8.0,
        "p50_s": None,
    }
    status = {
        "time_ms": (int(time.time()) - age_s) * 1000,
        "error": "",
        "topics": {name: one, "Shop": failing},
    }
    (out / "_tandemmq").mkdir(parents=True)
    (out / "_tandemmq" / "status.json").write_text(json.dumps(status))


def list_orders(out: Path) -> list[str]:
    return sorted(f"{path.parent.name} {path.name}" for path in out.glob("_tandemmq/*/*"))


async def test_topics_are_shown_paused_resumed_and_landed_anew_unless_withdrawn(tmp_path: Path) -> None:
    out, idle = tmp_path / "lakes", tmp_path / "idle"
    write_status(out)
    async with Cluster() as cluster:
        async with open_browser(cluster.name_servers) as browser:
            assert "--served DIR" in (await browser.get("/services")).text
        async with open_browser(cluster.name_servers, served=[out, idle]) as browser:
            page = (await browser.get("/services")).text
            for text in (
                "1\u202f500",
                "disk &lt;full&gt; (next try in 8.0 s)",
                f"{idle}: no service has run here",
            ):
                assert text in page
            assert ENDED not in page
            assert '<span class="state bad">failing</span>' in page
            assert page.index(">Orders</a>") < page.index(">Shop</a>")
            page = (await browser.get("/services?sort=-lag")).text
            assert page.index(">Orders</a>") > page.index(">Shop</a>")
            fields = {"out": str(out), "topic": "Orders"}
            answer = await browser.post("/services/pause", fields)
            assert answer.status_code == 303, answer.text
            assert list_orders(out) == ["paused Orders"]
            assert ">Resume</button>" in (await browser.get("/services?q=Orders")).text
            assert (await browser.post("/services/resume", fields)).status_code == 303
            question = (await browser.get(f"/services/redo?out={out}&topic=Orders")).text
            assert f"moves its lake from {out}/Orders" in question
            assert list_orders(out) == []
            assert (await browser.post("/services/redo", fields)).status_code == 303
            assert list_orders(out) == ["redo Orders"]
            page = (await browser.get("/services")).text
            assert "to be landed anew" in page
            assert ">Cancel redo</button>" in page
            assert (await browser.post("/services/cancel-redo", fields)).status_code == 303
            assert list_orders(out) == []
            assert ">Cancel redo</button>" not in (await browser.get("/services")).text
            assert (await browser.post("/services/cancel-redo", fields)).status_code == 400
            first = browser.frame.audit.entries[-1]
            assert (first.action, first.values) == ("Pause a topic's pipeline", fields)


async def test_only_topics_of_the_given_services_are_controlled(tmp_path: Path) -> None:
    out, other = tmp_path / "lakes", tmp_path / "other"
    write_status(out)
    write_status(other)
    async with Cluster() as cluster, open_browser(cluster.name_servers, served=[out]) as browser:
        for directory, topic in ((other, "Orders"), (out, "../../x"), (out, "Missing"), ("", "Orders")):
            fields = {"out": str(directory), "topic": topic}
            for path in ("pause", "resume", "redo", "cancel-redo"):
                assert (await browser.post(f"/services/{path}", fields)).status_code == 404
        assert (await browser.get(f"/services/redo?out={other}&topic=Orders")).status_code == 404
        assert (list_orders(out), list_orders(other)) == ([], [])
        async with open_browser(cluster.name_servers, served=[out], read_only=True) as reader:
            assert "Pause" not in (await reader.get("/services")).text
            assert (
                await reader.post("/services/pause", {"out": str(out), "topic": "Orders"})
            ).status_code == 403


async def test_a_user_who_may_not_see_settings_controls_nothing(tmp_path: Path) -> None:
    write_status(tmp_path)
    fields = {"out": str(tmp_path), "topic": "Orders"}
    async with Cluster(settings=USERS) as cluster:
        async with open_browser(cluster.name_servers, served=[tmp_path]) as root:
            await root.log_in("root", "root-password")
            new = {"name": "app", "password": "app-secret", "type": "Normal"}
            assert (await root.post("/new-user", new)).status_code == 303
            policy = {"resource": "Topic:*", "decision": "Allow", "actions": "Pub", "addresses": ""}
            assert (await root.post("/access/users/app/grant", policy)).status_code == 303
            assert (await root.post("/services/pause", fields)).status_code == 303
        async with open_browser(cluster.name_servers, served=[tmp_path]) as app:
            assert (await app.log_in("app", "app-secret")).status_code == 303
            for path in ("/services/resume", "/services/redo", "/services/cancel-redo"):
                assert (await app.post(path, fields)).status_code in (403, 409)
        assert list_orders(tmp_path) == ["paused Orders"]


async def test_a_service_that_has_ended_is_named(tmp_path: Path) -> None:
    write_status(tmp_path, age_s=90)
    async with Cluster() as cluster, open_browser(cluster.name_servers, served=[tmp_path]) as browser:
        assert f"{tmp_path}: {ENDED}" in (await browser.get("/services")).text


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"time_ms": "x", "error": "", "topics": {}}', None])
async def test_a_directory_with_something_else_hides_no_other(tmp_path: Path, content: str | None) -> None:
    out, other = tmp_path / "lakes", tmp_path / "other"
    write_status(out)
    file = other / "_tandemmq" / "status.json"
    if content is None:
        file.mkdir(parents=True)
    else:
        file.parent.mkdir(parents=True)
        file.write_text(content)
    async with Cluster() as cluster, open_browser(cluster.name_servers, served=[out, other]) as browser:
        page = (await browser.get("/services")).text
        assert f"{other}: the status of its service cannot be read" in page
        assert ">Orders</a>" in page


async def test_an_order_that_cannot_be_given_is_named(tmp_path: Path) -> None:
    out = tmp_path / "lakes"
    write_status(out, "../../x")
    (out / "_tandemmq" / "paused").touch()
    async with Cluster() as cluster, open_browser(cluster.name_servers, served=[out]) as browser:
        answer = await browser.post("/services/redo", {"out": str(out), "topic": "../../x"})
        assert answer.status_code == 400
        assert "holds characters other than" in answer.text
        answer = await browser.post("/services/pause", {"out": str(out), "topic": "Shop"})
        assert answer.status_code == 400
        assert "the order cannot be written" in answer.text


async def test_without_a_master_nothing_is_controlled(tmp_path: Path) -> None:
    write_status(tmp_path)
    async with Cluster() as cluster, open_browser(cluster.name_servers, served=[tmp_path]) as browser:
        await cluster.lose_master()
        answer = await browser.post("/services/pause", {"out": str(tmp_path), "topic": "Orders"})
        assert (answer.status_code, list_orders(tmp_path)) == (409, [])
