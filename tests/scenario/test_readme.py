"""The Python in the documents runs as written, against a real name server and broker."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from client_rig import running_cluster

from tandemmq.testing import Cluster
from waits import PATIENCE_S

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "docs/client.md",
    *(f"docs/client/{path.name}" for path in sorted((ROOT / "docs" / "client").glob("*.md"))),
    "docs/operations/monitor.md",
    "docs/security.md",
)
NAME_SERVER = "127.0.0.1:9876"
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-password"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-password"}',
}
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets() -> Iterator[pytest.ParameterSet]:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for match in SNIPPET.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            yield pytest.param(match[1], id=f"{name}:{line}")


@pytest.mark.parametrize("source", list(snippets()))
async def test_snippet_runs(source: str, tmp_path: Path) -> None:
    if "\ndef test_" in source:
        path = tmp_path / "test_snippet.py"
        path.write_text(source, encoding="utf-8")
        run = await asyncio.to_thread(_run, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))
        assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
        return
    assert NAME_SERVER in source, "a snippet that reaches no cluster shows nothing"
    async with _cluster_for(source, tmp_path) as name_server:
        script = source.replace(NAME_SERVER, name_server)
        run = await asyncio.to_thread(_run, "-c", script)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


@asynccontextmanager
async def _cluster_for(source: str, root: Path) -> AsyncIterator[str]:
    """Runs a cluster, with access control for a snippet that signs, and yields its name server."""
    if 'access_key="root"' in source:
        async with Cluster(settings=GUARDED) as guarded:
            yield guarded.name_servers
    else:
        async with running_cluster(root) as cluster:
            yield cluster.namesrv


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a separate process, as a reader would."""
    return subprocess.run(
        [sys.executable, "-X", "dev", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
