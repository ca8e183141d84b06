"""The commands of mqadmin 5.5.0 against our servers and, for comparison, against Java's.

mqadmin ends with code 0 also when a command failed; what it printed decides. Commands run in one JVM, but for
the first, which is started as a user does.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from clusters import Cluster
from java_peers import LINE_5, Conversation, programs, run_java
from typer.testing import CliRunner

from tandemmq.cli import app
from waits import until_blocking

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

STARTUP = "org.apache.rocketmq.tools.command.MQAdminStartup"
FAULT = re.compile(r"^\s+at org\.|command failed|sub command .* not exist", re.MULTILINE)


@dataclass
class Subject:
    """A cluster with one topic of 12 messages, and a producer and a consumer that are online."""

    cluster: Cluster
    home: Path
    topic: str
    address: str
    words: dict[str, str] = field(default_factory=dict)
    shell: Conversation | None = None

    def close(self) -> None:
        shell, self.shell = self.shell, None
        if shell is not None:
            shell.close()

    def run(self, line: str) -> str:
        """Returns the output of the command; words in braces are filled in, `-n` is added."""
        words = [word.format(**self.words) for word in line.split()]
        if self.shell is None:
            self.shell = Conversation(programs(LINE_5), "AdminShell", home=self.home / "shell")
        try:
            self.shell.say("\t".join([*words, "-n", self.cluster.name_server]))
            output = "\n".join(self.shell.read_until("-- end of command")[:-1])
        except (AssertionError, OSError):
            # A command that ended the JVM, or never ended, fails alone.
            self.close()
            raise
        print(f"$ mqadmin {' '.join(words)}\n{output}")
        return output

    def run_ok(self, line: str, *wanted: str) -> str:
        """The same for a command that must not fail and must print what matches all the patterns."""
        output = self.run(line)
        assert not FAULT.search(output), output
        for pattern in wanted:
            filled = pattern
            for name, value in self.words.items():
                filled = filled.replace(f"{{{name}}}", re.escape(value))
            assert re.search(filled, output, re.MULTILINE), f"no {filled!r} in:\n{output}"
        return output


@pytest.fixture(scope="module", params=["ours", "java"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    cluster: Cluster = request.getfixturevalue("ours" if request.param == "ours" else "java_5")
    home = tmp_path_factory.mktemp("mqadmin")
    topic = f"admin-{secrets.token_hex(3)}"
    path = programs(LINE_5)
    stay = Conversation(path, "Stay", cluster.name_server, topic, home=home / "stay")
    found = Subject(cluster, home, topic, cluster.brokers["broker-a"].address)
    try:
        _, unique_id, message_id, client_id = stay.read_until("READY", 90)[-1].split()
        found.words = {
            "topic": topic,
            "group": f"{topic}-group",
            "producers": f"{topic}-producers",
            "broker": found.address,
            "unique": unique_id,
            "id": message_id,
            "client": client_id,
            "home": str(home),
            "now": str(int(time.time() * 1000)),
            "ns": cluster.name_server,
        }
        yield found
    finally:
        stay.close()
        found.close()


def test_exit_code_and_output_of_a_process(subject: Subject) -> None:
    home = subject.home / "process"
    arguments = ["clusterList", "-n", subject.cluster.name_server]
    done = run_java(programs(LINE_5), STARTUP, *arguments, home=home)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"DefaultCluster +broker-a +0 +{subject.address} +V5_[35]_[03]", done.stdout), (
        done.stdout
    )


READS = [
    ("clusterList -m", "^DefaultCluster +broker-a"),
    (
        "brokerStatus -b {broker}",
        "^brokerVersionDesc +: V5_[35]_[03]",
        "^putTps +: ",
        "^commitLogMaxOffset +: [1-9]",
    ),
    ("brokerStatus -c DefaultCluster", "{broker} +runtime +: "),
    ("getBrokerConfig -b {broker}", "^brokerName += +broker-a", "^fileReservedTime += +72"),
    ("haStatus -b {broker}", "MasterAddr", "SlaveNum"),
    ("sendMsgStatus -b broker-a -s 64 -c 2", "rt=.*SEND_OK"),
    ("topicList", "^{topic}$", "^TBW102$", "^SCHEDULE_TOPIC_XXXX$|^SELF_TEST_TOPIC$"),
    ("topicList -c DefaultCluster", "DefaultCluster +{topic} +{group}"),
    ("topicRoute -t {topic}", '"brokerName": ?"broker-a"', '"{broker}"', '"readQueueNums": ?4'),
    ("topicRoute -t {topic} -l", "DefaultCluster +broker-a +.*{broker}.* +4 +4 +6"),
    ("topicStatus -t {topic}", "^broker-a +0 +0 +3", "^broker-a +3 +0 +3"),
    ("topicClusterList -t {topic}", "^DefaultCluster$"),
    ("allocateMQ -t {topic} -i 127.0.0.1,127.0.0.2", "queueId", "127.0.0.2"),
    ("getNamesrvConfig", "listenPort"),
    ("getConsumerConfig -g {group}", "groupName += +{group}", "retryMaxTimes += +16"),
    ("consumerProgress -g {group}", "^{topic} +broker-a +0 +3 +3 .*0", "Consume Diff Total: 0"),
    ("consumerProgress -g {group} -s true", "^{topic} +broker-a +0 +3 +3 .*\\d+\\.\\d+\\.\\d+\\.\\d+.* 0"),
    ("consumerProgress", "{group} +1 +V5_5_0 +PUSH +CLUSTERING"),
    (
        "consumerConnection -g {group}",
        "JAVA +V5_5_0",
        "^{topic} +\\*",
        "CONSUME_PASSIVELY",
    ),
    ("producerConnection -g {producers} -t {topic}", "JAVA +V5_5_0"),
    ("queryMsgById -t {topic} -i {id} -g {group} -d {client}", "consumeResult: ?CR_SUCCESS|CR_SUCCESS"),
    ("producer -b {broker}", "producer group \\({producers}\\) instance"),
    ("consumerStatus -g {group}", "V5_5_0", "Same subscription", "Rebalance OK"),
    ("queryMsgById -t {topic} -i {id}", "^OffsetID: +{id}", "^Keys: +\\[key-0\\]", "{group}.*CONSUMED"),
    ("queryMsgByUniqueKey -t {topic} -i {unique}", "^Keys: +\\[key-0\\]", "^Tags: +\\[tag-a\\]"),
    ("queryMsgByKey -t {topic} -k key-5", "[0-9A-F]{20,} +1 +1"),
    ("queryMsgByKey -t {topic} -k tag-a -p T", "[0-9A-F]{20,} +\\d+ +\\d+"),
    ("queryMsgByOffset -t {topic} -b broker-a -i 0 -o 1", "^Keys: +\\[key-4\\]", "^Queue Offset: +1"),
    ("printMsg -t {topic} -d true", "minOffset=0, maxOffset=3", "BODY: text 7"),
    ("printMsgByQueue -t {topic} -a broker-a -i 2 -p true -d true", "text 2", "text 10"),
    ("consumeMessage -t {topic} -b broker-a -i 1 -o 0 -c 2", "text 1"),
    ("exportMetadata -c DefaultCluster -f {home}", "export .*metadata.json success"),
    ("exportConfigs -c DefaultCluster -f {home}", "export .*configs.json success"),
]


@pytest.mark.parametrize("case", READS, ids=lambda case: case[0].replace("{", "").replace("}", ""))
def test_command_that_reads(subject: Subject, case: tuple[str, ...]) -> None:
    if case[0].startswith("queryMsgByKey"):
        # The key index of a Java broker follows the log with a delay.
        until_blocking(lambda: bool(re.search("[0-9A-F]{20,}", subject.run(case[0]))), "the key is indexed")
    subject.run_ok(*case)


def test_life_of_a_topic(subject: Subject) -> None:
    name = subject.words["new"] = f"{subject.topic}-new"
    subject.run_ok("updateTopic -c DefaultCluster -t {new} -r 5 -w 5", "create topic to {broker} success")
    until_blocking(lambda: name in subject.run("topicList").splitlines(), "the new topic is listed")
    subject.run_ok("topicRoute -t {new}", '"writeQueueNums": ?5', '"perm": ?6')
    subject.run_ok("updateTopicPerm -t {new} -p 4 -c DefaultCluster", "from 6 to 4|success")
    until_blocking(
        lambda: bool(re.search('"perm": ?4', subject.run("topicRoute -t {new}"))), "permission 4 in the route"
    )
    subject.run_ok("updateTopic -b {broker} -t {new} -r 6 -w 6 -p 6", "create topic to {broker} success")
    until_blocking(
        lambda: bool(re.search('"writeQueueNums": ?6', subject.run("topicRoute -t {new}"))),
        "six queues in the route",
    )
    subject.run_ok("sendMessage -t {new} -p hello -k somekey -c sometag", "broker-a +\\d +SEND_OK +[0-9A-F]+")
    subject.run_ok("checkMsgSendRT -t {new} -a 3 -s 16", "broker-a +\\d +true", "Avg RT")
    subject.run_ok("updateOrderConf -t {new} -m put -v broker-a:6", "success")
    subject.run_ok("updateOrderConf -t {new} -m get", "broker-a:6")
    subject.run_ok("updateOrderConf -t {new} -m delete", "success")
    subject.run_ok(
        "deleteTopic -t {new} -c DefaultCluster", "delete topic \\[{new}\\] from cluster .* success"
    )
    until_blocking(lambda: name not in subject.run("topicList").splitlines(), "the topic is gone")


def test_life_of_a_group(subject: Subject) -> None:
    subject.words["new"] = f"{subject.topic}-g2"
    subject.run_ok(
        "updateSubGroup -c DefaultCluster -g {new} -r 3 -q 2", "create subscription group to {broker} success"
    )
    subject.run_ok("getConsumerConfig -g {new}", "retryMaxTimes += +3", "retryQueueNums += +2")
    subject.run_ok("setConsumeMode -b {broker} -t {topic} -g {new} -m POP -q 1", "set consume mode.*success")
    subject.run_ok("setConsumeMode -b {broker} -t {topic} -g {new} -m PULL", "set consume mode.*success")
    subject.run_ok("deleteSubGroup -g {new} -c DefaultCluster -r true", "success")
    output = subject.run("getConsumerConfig -g {new}")
    assert "retryMaxTimes" not in output, output


def test_offsets_are_reset_and_skipped(subject: Subject) -> None:
    """A group of its own, which is offline, is moved."""
    subject.words["new"] = f"{subject.topic}-g3"
    subject.run_ok("updateSubGroup -c DefaultCluster -g {new}", "success")
    subject.run_ok("skipAccumulatedMessage -g {new} -t {topic} -f true", "broker-a +0 +3")
    subject.run_ok("resetOffsetByTime -g {new} -t {topic} -s now", "broker-a +2 +3")
    subject.run_ok("resetOffsetByTime -g {new} -t {topic} -s 1000", "broker-a +2 +0")
    subject.run_ok("cloneGroupOffset -s {group} -d {new} -t {topic} -o false", "success")


def test_settings_of_the_name_server(subject: Subject) -> None:
    subject.run_ok("updateKvConfig -s space -k k1 -v v1", "success")
    subject.run_ok("deleteKvConfig -s space -k k1", "success")
    subject.run_ok("wipeWritePerm -b broker-a", "wipe write perm of broker.*broker-a.* OK, \\d+")
    until_blocking(
        lambda: bool(re.search('"perm": ?4', subject.run("topicRoute -t {topic}"))), "permission 4"
    )
    subject.run_ok("addWritePerm -b broker-a", "add write perm of broker.*broker-a.* OK, \\d+")
    until_blocking(
        lambda: bool(re.search('"perm": ?6', subject.run("topicRoute -t {topic}"))), "permission 6"
    )
    subject.run_ok("updateNamesrvConfig -k orderMessageEnable -v false", "success")
    subject.run_ok("getNamesrvConfig", "orderMessageEnable += +false")


SERVED = [
    ("brokerConsumeStats -b {broker} -t 5000", "^{topic} +{group} +broker-a +0 +3 +3 +0", "Diff Total: \\d"),
    ("queryCq -t {topic} -q 0 -i 0 -c 2 -b {broker}", "Index:? *(min|max)?|min index|maxQueueIndex|===="),
    ("queryCq -t {topic} -q 0 -i 0 -c 2 -b {broker} -g {group}", "Subscription data"),
    ("cleanExpiredCQ -b {broker}", "success"),
    ("cleanUnusedTopic -b {broker}", "success"),
    ("deleteExpiredCommitLog -b {broker}", "success"),
    ("resetMasterFlushOffset -b {broker} -o 0", "success|reset master flush offset"),
    ("statsAll -t {topic}", "^{topic} +{group}"),
    ("updateBrokerConfig -b {broker} -k fileReservedTime -v 71", "update broker config success, {broker}"),
    ("getBrokerConfig -b {broker}", "^fileReservedTime += +71"),
    ("updateBrokerConfig -c DefaultCluster -k fileReservedTime -v 72", "success"),
]


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case[0].replace("{", "").replace("}", ""))
def test_command_of_operators(subject: Subject, case: tuple[str, ...]) -> None:
    subject.run_ok(*case)


def test_round_trips_are_measured_until_the_command_is_killed(subject: Subject) -> None:
    words = ["clusterRT", "-a", "2", "-s", "16", "-i", "1", "-p", "false", "-n"]
    home = subject.home / "endless"
    command = Conversation(programs(LINE_5), STARTUP, *words, subject.cluster.name_server, home=home)
    try:
        output = "\n".join(command.read_until("DefaultCluster", 200))
    finally:
        command.kill()
    assert not FAULT.search(output), output
    assert re.search("DefaultCluster +broker-a +\\d+\\.\\d+ +2 +0", output), output


def test_monitoring_runs_until_it_is_killed(subject: Subject) -> None:
    words = ["startMonitoring", "-n", subject.cluster.name_server]
    with pytest.raises(subprocess.TimeoutExpired) as ended:
        run_java(programs(LINE_5), STARTUP, *words, home=subject.home / "endless", seconds_max=12)
    assert not FAULT.search((ended.value.stdout or b"").decode())


def test_thresholds_of_cold_reads(subject: Subject) -> None:
    subject.words["new"] = f"{subject.topic}-cold"
    name, done = subject.words["new"], "to {broker} success|success"
    subject.run_ok("updateColdDataFlowCtrGroupConfig -b {broker} -g {new} -v 4096", done)
    shown = subject.run_ok("getColdDataFlowCtrInfo -b {broker}", '"{new}": ?4096')
    told = json.loads(shown[shown.index("{") :])
    assert told["configTable"] == {name: 4096}
    assert (told["cgColdReadThreshold"], told["globalColdReadThreshold"]) == (3_145_728, 104_857_600)
    assert (told["runtimeTable"], told["globalAcc"]) == ({}, 0)
    subject.run_ok("updateColdDataFlowCtrGroupConfig -c DefaultCluster -g {new} -v 8192", done)
    subject.run_ok("getColdDataFlowCtrInfo -c DefaultCluster", '"{new}": ?8192')
    subject.run_ok("removeColdDataFlowCtrGroupConfig -b {broker} -g {new}", done)
    assert name not in subject.run("getColdDataFlowCtrInfo -b {broker}")


def test_read_ahead_of_the_log(subject: Subject) -> None:
    for mode, is_ahead in ((1, "false"), (0, "true")):
        line = f"setCommitLogReadAheadMode -b {{broker}} -m {mode}"
        subject.run_ok(line, "readAhead mode rstStr.*(success|for all CommitLog files)")
        subject.run_ok("getBrokerConfig -b {broker}", f"^dataReadAheadEnable += +{is_ahead}")


def test_leases_are_exported(subject: Subject) -> None:
    subject.run_ok("exportPopRecord -b {broker}", "^Export broker records, .*dryRun=false")


def test_trace_of_a_message(subject: Subject) -> None:
    look = "queryMsgTraceById -i {unique}"
    # Traces are sent in the background, to a topic that the first of them makes.
    until_blocking(lambda: re.search("^Pub ", subject.run(look), re.MULTILINE), "the trace is found")
    subject.run_ok(look, "^#Type +#ProducerGroup", "^Pub +{producers} .*success")


def test_lists_from_files(subject: Subject) -> None:
    topics = subject.home / "topics.json"
    name = subject.words["new"] = f"{subject.topic}-list"
    topics.write_text(
        json.dumps([{"topicName": f"{name}-{n}", "readQueueNums": 2, "writeQueueNums": 2} for n in (1, 2)])
    )
    subject.words["file"] = str(topics)
    subject.run_ok("updateTopicList -b {broker} -f {file}", "success")
    until_blocking(lambda: f"{name}-2" in subject.run("topicList").splitlines(), "the topics are listed")
    groups = subject.home / "groups.json"
    groups.write_text(json.dumps([{"groupName": f"{name}-g{n}", "retryMaxTimes": 5} for n in (1, 2)]))
    subject.words["file"] = str(groups)
    subject.run_ok("updateSubGroupList -b {broker} -f {file}", "success")
    subject.run_ok("getConsumerConfig -g {new}-g2", "retryMaxTimes += +5")


def test_exported_metrics(subject: Subject) -> None:
    folder = subject.home / "export"
    folder.mkdir(exist_ok=True)
    subject.words["folder"] = str(folder)
    subject.run_ok("exportMetrics -c DefaultCluster -f {folder}", "export .*metrics.json success")
    found = json.loads((folder / "metrics.json").read_text())
    assert "evaluateReport" in found or "totalData" in str(found), found


def test_our_own_commands(subject: Subject) -> None:
    """`tandemmq admin` at both servers: what it has of mqadmin's commands reads Java's answers, too."""

    def rows(line: str) -> list[dict[str, object]]:
        words = [word.format(**subject.words) for word in line.split()]
        result = CliRunner().invoke(app, ["admin", *words, "-n", subject.cluster.name_server, "--json"])
        assert result.exit_code == 0, result.output
        tables: dict[str, list[dict[str, object]]] = json.loads(result.stdout)
        return next(iter(tables.values()))

    words = subject.words
    assert words["producers"] in {row["group"] for row in rows("producer -b {broker}")}
    progress = rows("brokerConsumeStats -b {broker} -l 0")
    assert (subject.topic, words["group"]) in {(row["topic"], row["group"]) for row in progress}
    assert len(rows("consumeMessage -t {topic} -c 5")) == 5
    shares = rows("allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2")
    assert {row["member"] for row in shares} == {"10.0.0.1", "10.0.0.2"}
    assert [row["order"] for row in rows("updateOrderConf -t {topic} -v broker-a:4")] == ["broker-a:4"]
    assert [row["order"] for row in rows("updateOrderConf -t {topic} -m delete")] == [None]
    assert [row["status"] for row in rows("sendMsgStatus -b broker-a -c 2")] == ["SEND_OK"] * 2
    name = words["new"] = f"{subject.topic}-own"
    rows("updateColdDataFlowCtrGroupConfig -b {broker} -g {new} -v 4096")
    assert {row["group"]: row["threshold_bytes"] for row in rows("getColdDataFlowCtrInfo -b {broker}")}[
        name
    ] == 4096
    rows("removeColdDataFlowCtrGroupConfig -b {broker} -g {new}")
    words["file"] = str(subject.home / "own.json")
    Path(words["file"]).write_text(json.dumps([{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2}]))
    assert [row["topic"] for row in rows("updateTopicList -b {broker} -f {file}")] == [name]
    until_blocking(lambda: name in subject.run("topicList").splitlines(), "the topic is listed")
    assert [row["status"] for row in rows("checkMsgSendRT -t {new} -a 2")] == ["SEND_OK"] * 2
    Path(words["file"]).write_text(json.dumps([{"groupName": name, "retryMaxTimes": 5}]))
    assert [row["group"] for row in rows("updateSubGroupList -b {broker} -f {file}")] == [name]
    assert {row["retry_count_max"] for row in rows("getConsumerConfig -g {new}")} == {5}
    words["folder"] = str(subject.home / "own")
    assert [row["masters"] for row in rows("exportConfigs -c DefaultCluster -f {folder}")] == [1]
    settings = json.loads(Path(words["folder"], "configs.json").read_text())["brokerConfigs"]["broker-a"]
    assert (settings["brokerName"], settings["traceOn"]) == ("broker-a", "true")
    assert [row["masters"] for row in rows("exportMetrics -c DefaultCluster -f {folder}")] == [1]
    figures = json.loads(Path(words["folder"], "metrics.json").read_text())["evaluateReport"]["broker-a"]
    assert figures["runtimeQuota"]["topicSize"] > 0
    assert any(client.startswith("JAVA%V5") for client in figures["runtimeVersion"]["clientInfo"])
    assert [row["failed"] for row in rows("clusterRT -a 2 -s 16 -i 0")] == [0]
    assert words["group"] in {row["group"] for row in rows("startMonitoring -i 0")}
    assert words["group"] in {row["group"] for row in rows("consumerProgress")}
    [message] = rows("queryMsgById -t {topic} -i {id}")
    assert message["unique_key"] == words["unique"]
    until_blocking(lambda: subject.run("queryMsgTraceById -i {unique}"), "the trace is found")
    assert [row["ok"] for row in rows("queryMsgTraceById -i {unique}")] == [True]
    assert [row["offset"] for row in rows("resetMasterFlushOffset -b {broker} -o 0")] == [0]
    assert [row["mode"] for row in rows("setCommitLogReadAheadMode -b {broker} -m 0")] == [0]
    assert [row["dry"] for row in rows("exportPopRecord -b {broker} -d true")] == [True]
    assert len(rows("queryMsgById -t {topic} -i {id} -g {group} -d {client}")) == 1


UNSERVED = [
    "getBrokerEpoch -b broker-a",
    "updateStaticTopic -t {topic}-static -qn 2 -c DefaultCluster",
    "updateBrokerConfig -b {broker} -k storePathRootDir -v /tmp/elsewhere",
]


@pytest.mark.parametrize("subject", ["ours"], indirect=True)
@pytest.mark.parametrize("line", UNSERVED, ids=lambda line: line.split()[0])
def test_command_that_we_do_not_serve_is_refused_in_words(subject: Subject, line: str) -> None:
    output = subject.run(line)
    assert re.search("CODE: (3|4|16) ", output), output
