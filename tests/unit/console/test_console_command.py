"""The options of `tandemmq console`: addresses for other machines need TLS and a log-in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tandemmq.console.audit import ENTRIES_MAX, AuditLog
from tandemmq.console.command import ConsoleOptions, make_frame
from tandemmq.errors import ConfigError
from tandemmq.runtime.machine import LoopClock
from tandemmq.testing import Cluster
from unit.console.console_client import open_browser


def test_address_for_other_machines_needs_tls(tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.touch()
    ConsoleOptions().check()
    ConsoleOptions(listen="[::1]:0").check()
    ConsoleOptions(listen="0.0.0.0:8088", plain_http=True).check()
    ConsoleOptions(listen="0.0.0.0:8088", tls_cert=chain, tls_key=chain).check()
    for options, reason in (
        (ConsoleOptions(listen="0.0.0.0:8088"), "other machines can reach"),
        (ConsoleOptions(host_name=["console.example"]), "other machines can reach"),
        (ConsoleOptions(listen="8088"), "is not an address"),
        (ConsoleOptions(tls_cert=chain), "only useful together"),
        (ConsoleOptions(tls_cert=tmp_path / "none", tls_key=chain), "no such file"),
    ):
        with pytest.raises(ConfigError, match=reason):
            options.check()


def test_visitors_are_admitted_on_loopback_only(tmp_path: Path) -> None:
    def admits(options: ConsoleOptions) -> bool:
        return make_frame("127.0.0.1:1", options).sessions.admits_visitors

    assert admits(ConsoleOptions())
    assert not admits(ConsoleOptions(listen="0.0.0.0:8088"))
    assert not admits(ConsoleOptions(host_name=["console.example"]))
    assert admits(ConsoleOptions(listen="0.0.0.0:8088", visitors=True))


async def test_cookies_are_secure_under_tls(tmp_path: Path) -> None:
    async with (
        Cluster() as cluster,
        open_browser(cluster.name_servers, tls_cert=tmp_path, tls_key=tmp_path) as browser,
    ):
        answer = await browser.get("/")
    assert answer.headers["set-cookie"].startswith("__Host-tandemmq-8088=")
    assert "; Secure" in answer.headers["set-cookie"]
    assert "strict-transport-security" in answer.headers


async def test_console_without_a_name_server_says_so() -> None:
    async with open_browser("127.0.0.1:1") as browser:
        answer = await browser.get("/")
        assert (await browser.get("/login")).status_code == 200
        assert (await browser.log_in("any", "keys")).status_code == 502
    assert answer.status_code == 502
    assert "127.0.0.1:1" in answer.text


def test_audit_list_is_bounded_and_its_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(LoopClock(), path)
    first = audit.begin("eve", "127.0.0.1", "Delete", "/topics/A/delete", {"body": "x" * 1000})
    for _ in range(ENTRIES_MAX):
        audit.finish(audit.begin("eve", "127.0.0.1", "Change", "/c", {}), "done")
    audit.finish(first, "done")
    audit.close()
    assert len(audit.entries) == ENTRIES_MAX
    assert all(one.action == "Change" for one in audit.entries)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (lines[0]["outcome"], lines[-1]["outcome"], len(lines)) == ("begun", "done", 2 * ENTRIES_MAX + 2)
    assert lines[0]["values"]["body"].endswith("x…")
    with pytest.raises(ConfigError, match="--audit-log"):
        AuditLog(LoopClock(), tmp_path / "none" / "audit.jsonl")


def test_entry_that_a_full_disk_cuts_is_refused_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(LoopClock(), path)
    assert path.stat().st_mode & 0o077 == 0
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:20]))
        with pytest.raises(OSError, match="No space left"):
            audit.begin("eve", "127.0.0.1", "Change", "/c", {})
    for _ in range(2):
        audit.begin("eve", "127.0.0.1", "Change", "/c", {})
    audit.close()
    torn, *entries = path.read_text().splitlines()
    assert len(torn) == 20
    assert [json.loads(line)["number"] for line in entries] == [2, 3]


async def test_nothing_changes_when_the_audit_file_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with Cluster() as cluster, open_browser(cluster.name_servers, audit_log=path) as browser:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, browser.frame.audit._file)
        os.close(full)
        answer = await browser.post("/brokers/groups/broker-a/permission", {"writable": "false"})
    assert answer.status_code == 503
    assert "nothing was changed" in answer.text
