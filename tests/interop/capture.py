"""Writes what Java peers send each other, and what a broker stores, as test vectors.

    .venv/bin/python tests/interop/capture.py

Each line of RocketMQ gives `tests/unit/protocol/vectors/java-LINE.json`, a frame of each kind, and
`tests/unit/store/vectors/java-LINE.zip`, a small store directory. Run it again for a new release.
"""

from __future__ import annotations

import getpass
import secrets
import socket
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

from clusters import Cluster, java_cluster
from java_peers import LINE_5, LINES, ONLY_5X, Conversation, Line, fetch_all, programs, run_program
from recorder import Recorder, Tap

UNIT = Path(__file__).parents[1] / "unit"
PROGRAMS = (
    *("Transactions", "RequestReply", "SqlFilter", "Retry", "Pop", "Ordered", "ResetOffset", "Diagnose"),
    *("Sends", "Queries", "LitePull", "Broadcast", "Delayed", "Timer"),
)
BINARY_PROGRAMS = ("Sends", "Retry", "Ordered", "Queries")
SETTINGS = {
    "enablePropertyFilter": "true",
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 2_000,
    "transactionOpBatchInterval": 100,
    "mappedFileSizeCommitLog": 4 << 20,
}
SMALL_STORE = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 256,
}
COMMANDS = """
clusterList
brokerStatus -b {broker}
getBrokerConfig -b {broker}
topicList -c DefaultCluster
topicStatus -t {topic}
topicClusterList -t {topic}
consumerProgress -g {group}
consumerConnection -g {group}
producerConnection -g {topic}-producers -t {topic}
consumerStatus -g {group} -s
brokerConsumeStats -b {broker}
queryCq -t {topic} -q 0 -i 0 -b {broker}
updateTopic -b {broker} -t {topic}-made -r 4 -w 4
updateSubGroup -b {broker} -g {group}-made
setConsumeMode -b {broker} -t {topic} -g {group}-made -m POP -q 1
cloneGroupOffset -s {group} -d {group}-made -t {topic} -o false
updateBrokerConfig -b {broker} -k fileReservedTime -v 70
deleteSubGroup -b {broker} -g {group}-made
deleteTopic -t {topic}-made -c DefaultCluster
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
wipeWritePerm -b broker-a
addWritePerm -b broker-a
getNamesrvConfig
haStatus -b {broker}
producer -b {broker}
statsAll -t {topic}
cleanExpiredCQ -b {broker}
deleteExpiredCommitLog -b {broker}
cleanUnusedTopic -b {broker}
""".strip().splitlines()


def hidden(directory: Path) -> dict[bytes, bytes]:
    """Names of this machine and what stands for them, of the same length."""
    names = {str(directory), str(directory.parent), str(Path.home()), socket.gethostname()}
    own = {name.encode(): b"/" + b"x" * (len(name) - 1) for name in names if len(name) > 3}
    own[getpass.getuser().encode()] = b"u" * len(getpass.getuser())
    return own


def run_all(line: Line, name_server: str, directory: Path) -> None:
    """The programs, four at a time; one that fails is reported and skipped."""
    flags = ["-Drocketmq.serialize.type=ROCKETMQ"]
    wanted = [(name, []) for name in PROGRAMS if line is LINE_5 or f"{name}.java" not in ONLY_5X]
    wanted += [(name, flags) for name in BINARY_PROGRAMS]

    def run(program: str, flags: list[str]) -> None:
        topic = f"{program}-{secrets.token_hex(2)}"
        try:
            run_program(line, program, name_server, topic, home=directory / f"home-{topic}", flags=flags)
        except Exception as error:  # noqa: BLE001
            print(f"{program}: {str(error)[-600:]}", file=sys.stderr)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: run(*job), wanted))


def run_commands(name_server: str, broker: str, directory: Path) -> None:
    """mqadmin's commands, with a producer and a consumer online."""
    topic = "Commands"
    words = {"topic": topic, "group": f"{topic}-group", "broker": broker}
    stay = Conversation(programs(LINE_5), "Stay", name_server, topic, home=directory / "stay")
    shell = Conversation(programs(LINE_5), "AdminShell", home=directory / "shell")
    with closing(stay), closing(shell):
        stay.read_until("READY", 90)
        for command in COMMANDS:
            shell.say("\t".join([*command.format(**words).split(), "-n", name_server]))
            shell.read_until("-- end of command", 90)


def capture_frames(line: Line, directory: Path) -> Recorder:
    """A master, a slave, clients and tools, all of one line, each behind a proxy."""
    recorder = Recorder(hidden(directory))
    with ExitStack() as stack, java_cluster(line, directory / "cluster") as cluster:

        def tap(target: str, rewritten: dict[str, str] | None = None) -> Tap:
            return stack.enter_context(closing(Tap(recorder, target, rewritten)))

        def behind(address: str) -> Cluster:
            return Cluster(address, cluster.directory, stack)

        brokers = behind(tap(cluster.name_server).address)
        master = brokers.start_java(line, "broker-a", SETTINGS)
        shown = {master.address: tap(master.address).address}
        slave = {**SETTINGS, "brokerId": 1, "brokerRole": "SLAVE", "storePathRootDir": directory / "slave"}
        # What its master tells it comes through the proxy as well.
        slaves = behind(tap(cluster.name_server, shown).address)
        slaves.start_java(line, "broker-a", slave)
        clients = tap(cluster.name_server, shown).address
        run_all(line, clients, directory)
        if line is LINE_5:
            run_commands(clients, shown[master.address], directory)
    return recorder


def capture_store(line: Line, directory: Path, path: Path) -> None:
    """A store directory after a clean stop: its log, queues, index, check point."""
    with java_cluster(line, directory / "small") as cluster:
        broker = cluster.start_java(line, "broker-a", SMALL_STORE)
        for program in ("Tags", "Delayed"):
            run_program(line, program, cluster.name_server, program, home=directory / f"small-{program}")
        broker.stop()
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
            for file in sorted(broker.store.rglob("*")):
                part = file.relative_to(broker.store).parts[0]
                if file.is_file() and part in ("commitlog", "consumequeue", "index", "checkpoint"):
                    target.write(file, str(file.relative_to(broker.store)))


def main() -> None:
    fetch_all()
    for line in LINES.values():
        with tempfile.TemporaryDirectory(prefix="capture-") as name:
            recorder = capture_frames(line, Path(name))
            count = recorder.write(UNIT / "protocol" / "vectors" / f"java-{line.name}.json")
            capture_store(line, Path(name), UNIT / "store" / "vectors" / f"java-{line.name}.zip")
            print(f"{line.name}: {count} frames")


if __name__ == "__main__":
    main()
