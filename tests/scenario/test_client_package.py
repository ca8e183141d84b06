"""The package `tandemmq-client`: its files and the libraries it requires are enough to send and receive."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tandemmq.testing import BlockingCluster
from waits import PATIENCE_S

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "packaging" / "client" / "pyproject.toml"

PROGRAM = """
import asyncio, logging, os, random, socket, subprocess, sys, tempfile, threading
sys.path.insert(0, sys.argv[1])
sys.modules.update(dict.fromkeys(("fcntl", "resource")))  # Windows has none of these
for name in (
    "O_CLOEXEC", "O_DIRECTORY", "fchmod", "fdatasync", "geteuid", "getuid", "posix_fadvise",
    "posix_fallocate", "pread", "pwrite", "pwritev", "register_at_fork", "eventfd",
    "sched_getaffinity", "statvfs",
):
    delattr(os, name)
really_open = os.open
def open_file(path, *args, **keywords):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return really_open(path, *args, **keywords)
os.open = open_file

import tandemmq.client as client
for name in client.__all__:
    getattr(client, name)

name_server = sys.argv[2]
with client.BlockingAdmin(name_server) as admin:
    admin.ensure_topic("Orders")
with client.BlockingProducer("shop", name_server) as producer:
    assert producer.send(client.Message(topic="Orders", body=b"blocking", properties={"country": "NL"})).is_ok

async def main():
    options = client.ConsumerOptions(start_from=client.StartFrom.FIRST)
    async with client.Producer("shop", name_server) as producer:
        await producer.send(client.Message(topic="Orders", body=b"asyncio", properties={"country": "NL"}))
    async with client.Consumer("billing", name_server, options=options) as consumer:
        consumer.subscribe("Orders", sql="country = 'NL'")
        bodies = set()
        while len(bodies) < 2:
            bodies |= {message.body for message in await consumer.poll(timeout_s=5)}
        print(*sorted(bodies))
    options = client.ConsumerOptions(
        start_from=client.StartFrom.FIRST,
        model=client.MessageModel.BROADCASTING,
        offsets_dir=sys.argv[3],
        client=client.ClientOptions(instance_name="one"),
    )
    for turn in range(2):  # the second consumer begins where the first one ended
        async with client.Consumer("all", name_server, options=options) as consumer:
            consumer.subscribe("Orders")
            read = []
            while len(read) < (2, 1)[turn]:
                read += [message.body for message in await consumer.poll(timeout_s=5)]
            await consumer.poll(timeout_s=0)  # acknowledges the messages of the polls before
            await consumer.commit()
        print(*sorted(read))
        async with client.Producer("shop", name_server) as producer:
            await producer.send(client.Message(topic="Orders", body=b"later"))

asyncio.run(main())
print(sorted({name.partition(".")[0] for name in sys.modules} & {"numpy", "typer", "rich", "lark", "uvloop"}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Returns a folder with the files of the package and the libraries that it requires, and nothing else."""
    project = tomllib.loads(PROJECT.read_text())
    folder = tmp_path / "site"
    (folder / "tandemmq").mkdir(parents=True)
    for source, target in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        (folder / target).symlink_to((PROJECT.parent / source).resolve())
    for requirement in project["project"]["dependencies"]:
        module = requirement.partition(">")[0].replace("-", "_")
        if found := find_spec(module):  # zlib-ng lacks wheels for some machines
            assert found.origin is not None
            (folder / module).symlink_to(Path(found.origin).parent)
    return folder


def test_the_client_runs_with_the_files_and_libraries_of_its_package(site: Path, tmp_path: Path) -> None:
    with BlockingCluster() as cluster:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", PROGRAM, str(site), cluster.name_servers, "kept"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "b'asyncio' b'blocking'",
        "b'asyncio' b'blocking'",
        "b'later'",
        "[]",
    ]


def test_the_client_package_requires_what_the_whole_package_requires() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    client = tomllib.loads(PROJECT.read_text())["project"]
    assert set(client["dependencies"]) <= set(whole["dependencies"])
    assert client["requires-python"] == whole["requires-python"]
    assert client["entry-points"] == {
        "opentelemetry_instrumentor": whole["entry-points"]["opentelemetry_instrumentor"]
    }
    for extra, requirements in client["optional-dependencies"].items():
        assert set(requirements) <= {
            *whole["optional-dependencies"].get(extra, ()),
            *whole["dependencies"],
        }, extra
