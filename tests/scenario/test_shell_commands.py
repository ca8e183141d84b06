"""The commands for messages as a user types them, in separate processes, with real pipes. A command whose
input and output are not the subject runs in this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from client_rig import send_raw
from typer.testing import CliRunner

from tandemmq.cli import app
from tandemmq.client import (
    BlockingConsumer,
    BlockingProducer,
    ConsumerOptions,
    Message,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.shell import local
from tandemmq.shell.positions import parse_when
from waits import PATIENCE_S, until_blocking

pytestmark = pytest.mark.process


LETTERS = ConsumerOptions(start_from=StartFrom.FIRST, auto_ack=False)


class Shell:
    """Runs commands against a small running cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clean = {name: text for name, text in os.environ.items() if "NAMESRV" not in name}
        self.environment = {**clean, local.FOLDER_VARIABLE: str(folder), "COLUMNS": "200"}

    def run(self, *arguments: str, data: bytes = b"", code: int = 0) -> str:
        """Returns standard output, and standard error if the code is not 0."""
        done = subprocess.run(
            [sys.executable, "-m", "tandemmq", *arguments],
            input=data,
            capture_output=True,
            timeout=PATIENCE_S,
            env=self.environment,
            check=False,
        )
        text = (done.stdout + (done.stderr if code else b"")).decode("utf-8", "surrogateescape")
        assert done.returncode == code, text + done.stderr.decode()
        return text

    def run_here(self, *arguments: str, code: int = 0) -> str:
        """Returns the same of a command that runs in this process, without input."""
        environment = {local.FOLDER_VARIABLE: str(self.folder), "COLUMNS": "200"}
        done = CliRunner().invoke(app, arguments, env=environment)
        text = (done.stdout_bytes + (done.stderr_bytes if code else b"")).decode("utf-8", "surrogateescape")
        assert done.exit_code == code, done.output
        return text

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tandemmq", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=self.environment, **options)

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run_here(*arguments, "--json").splitlines()]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("up") / "a folder"
    subject = Shell(folder)
    subject.run("up", "--minimal", "--detach", "--no-proxy", "--no-console", "--port-base", "auto")
    yield subject
    subject.run("down")


def test_lines_go_in_and_come_out(shell: Shell, tmp_path: Path) -> None:
    lines = b"one\n\xff\x00binary\n\nlast without a line end"
    given = ("--tag", "red", "--key", "k1", "--property", "origin=a b")
    assert shell.run("produce", "Lines", *given, data=lines) == "3 messages sent to Lines\n"
    assert shell.run("produce", "Lines", data=b"") == "0 messages sent to Lines\n"
    assert shell.run("produce", "Urgent", "--priority", "3", data=lines) == "3 messages sent to Urgent\n"
    shown = [
        (one["queue"], one["properties"]["_SYS_MSG_PRIORITY_"]) for one in shell.rows("browse", "Urgent")
    ]
    assert shown == [(3, "3")] * 3
    path = tmp_path / "more lines"
    path.write_bytes(b"from a file\n" * 10)
    told = json.loads(shell.run("produce", "Lines", "--file", str(path), "--batch", "3", "--json"))
    assert (told["sent"], told["not_replicated"]) == (10, 0)

    shown = shell.run("tail", "Lines", "--last", "100", "--no-follow")
    assert shown.count("from a file\n") == 10
    found = {one.get("body"): one for one in shell.rows("browse", "Lines", "--tag", "red")}
    assert set(found) == {"one", None, "last without a line end"}
    assert found[None]["body_base64"] == "/wBiaW5hcnk="
    one = found["one"]
    assert (one["tags"], one["keys"], one["properties"]["origin"]) == ("red", ["k1"], "a b")
    assert len(shell.rows("browse", "Lines", "--key", "k1")) == 3
    assert [row["body"] for row in shell.rows("browse", "Lines", "--id", one["message_id"])] == ["one"]
    assert "\tbroker-a/" in shell.run("browse", "Lines", "--id", one["message_id"])
    place = ("--queue", str(one["queue"]), "--offset", str(one["offset"]), "--count", "1")
    assert [row["body"] for row in shell.rows("browse", "Lines", *place)] == ["one"]
    assert "\tred\tk1\tone\n" in shell.run("browse", "Lines", "--time", "10m", "--tag", "red")
    assert len(shell.rows("tail", "Lines", "--since", "10m", "--no-follow")) == 13
    assert len(shell.rows("tail", "Lines", "--no-follow")) == 10
    assert shell.rows("tail", "Lines", "--last", "0", "--no-follow") == []
    assert "no message found" in shell.run("browse", "Lines", "--key", "none", code=1)


def test_texts_files_and_generated_messages_are_sent(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("produce", "Texts", "one", "two") == "2 messages sent to Texts\n"
    assert shell.run("produce", "Texts", "again", "--count", "3", "--rate", "1000").startswith("3 messages")
    path = tmp_path / "document"
    path.write_bytes(b"two\nlines\n")
    assert shell.run("produce", "Whole", "--file", str(path), "--whole").startswith("1 message ")
    assert shell.rows("tail", "Whole", "--no-follow")[0]["body"] == "two\nlines\n"
    assert shell.run("produce", "Load", "--size", "100", "--count", "2500").startswith("2500 messages")
    sizes = shell.run("tail", "Load", "--no-follow", "--last", "3", "--format", "{size}")
    assert sizes == "100\n" * 3
    assert shell.run("produce", "Keyed", "--key-delimiter", ":", data=b"k1:a\nk2:b\n").startswith("2 ")
    lines = shell.run("tail", "Keyed", "--no-follow", "--format", "{keys}={body}").splitlines()
    assert sorted(lines) == ["k1=a", "k2=b"]
    text = shell.run("produce", "Keyed", "--key-delimiter", ":", data=b"none\n", code=1)
    assert "has no ':'" in text
    assert "Nothing was sent" in text


def test_the_json_of_tail_can_be_sent(shell: Shell) -> None:
    shell.run("produce", "Origin", "--tag", "red", "--key", "k", "--property", "a=b", data=b"x\n\xff\n")
    lines = shell.run("tail", "Origin", "--no-follow", "--json")
    shell.run("produce", "Copied", "--from-json", data=lines.encode())
    want, has = shell.rows("tail", "Origin", "--no-follow"), shell.rows("tail", "Copied", "--no-follow")
    for name in ("tags", "keys", "body", "body_base64"):
        assert [one.get(name) for one in has] == [one.get(name) for one in want]
    assert {one["properties"]["a"] for one in has} == {"b"}


def test_a_new_group_starts_where_it_is_told(shell: Shell) -> None:
    shell.run("produce", "Started", data=b"".join(b"%d\n" % number for number in range(10)))
    (queue,) = {row["queue"] for row in shell.rows("tail", "Started", "--no-follow")}
    ends = ("--wait", "500ms", "--format", "{queue}@{offset}")
    for group, start, offsets in (
        ("at-offset", "offset:7", (7, 8, 9)),
        ("at-end", "latest", ()),
        ("at-time", "1h", range(10)),
    ):
        found = shell.run_here("consume", "Started", "--group", group, "--from", start, *ends).split()
        assert found == [f"{queue}@{offset}" for offset in offsets]
    with shell.start(
        "consume", "Started", "-g", "at-offset", "--from", "earliest", *ends, stderr=subprocess.PIPE
    ) as again:
        assert again.stderr is not None
        assert b"continues there" in again.stderr.read()


def test_a_delayed_message_comes_later(shell: Shell) -> None:
    shell.run_here("produce", "Later", "sooner")
    shell.run_here("produce", "Later", "late", "--delay", "1s")
    found = shell.rows("consume", "Later", "--group", "later", "--count", "2")
    times = {row["body"]: row for row in found}
    assert times["late"]["stored_at"] >= times["late"]["born_at"] + 900 > times["sooner"]["stored_at"]


def test_a_request_has_its_reply(shell: Shell) -> None:
    assert "TEXT" in shell.run_here("reply", "Ask", "--group", "g", code=2)
    shell.run_here("topics", "create", "Ask", "--queues", "1")
    text = shell.run_here("request", "Ask", "who", "--timeout", "500ms", code=1)
    assert "`tandemmq reply`" in text
    options = ("--exec", "test $(cat) = who && echo me")
    with shell.start("reply", "Ask", "--group", "oracle", *options, stderr=subprocess.PIPE) as replier:

        def asked() -> bool:
            done = subprocess.run(
                [sys.executable, "-m", "tandemmq", "request", "Ask", "who", "--timeout", "2s"],
                capture_output=True,
                check=False,
                env=shell.environment,
            )
            return done.stdout == b"me\n\n"

        until_blocking(asked)
        shell.run_here("request", "Ask", "what", "--timeout", "500ms", code=1)
        replier.send_signal(signal.SIGINT)
        assert replier.wait(PATIENCE_S) == 0
        assert replier.stderr is not None
        assert b"exit code 1" in replier.stderr.read()


def test_one_line_typed_is_one_message_of_a_topic_of_ours(shell: Shell) -> None:
    """The view of a user at a terminal; topics that brokers create for themselves are hidden."""
    typed, keyboard = os.openpty()
    with shell.start("produce", "Typed", stdin=keyboard, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"Ctrl-D ends" in process.stderr.readline()
        os.write(typed, b"one line\n\x04")
        assert read_all(process) == b"1 message sent to Typed\n"
    os.close(keyboard)
    os.close(typed)
    listed = {one["topic"] for one in json.loads(shell.run("topics", "--json"))["topics"]}
    assert "Typed" in listed
    assert not listed & {"broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"}
    everything = {one["topic"] for one in json.loads(shell.run("topics", "--all", "--json"))["topics"]}
    assert {"Typed", "broker-a", "DefaultCluster"} <= everything


def read_all(process: subprocess.Popen[bytes]) -> bytes:
    """Returns the output of the process until it ends."""
    assert process.stdout is not None
    return process.stdout.read()


def test_a_group_goes_on_where_it_was(shell: Shell) -> None:
    shell.run("produce", "Work", data=b"".join(b"%d\n" % number for number in range(20)))
    first = shell.run_here("consume", "Work", "--group", "crew", "--count", "5").split()
    assert len(first) == 5
    (answer,) = [json.loads(shell.run_here("lag", "--group", "crew", "--json"))]
    assert sum(row["lag"] for row in answer["queues"]) == 15
    rest = shell.run_here("consume", "Work", "--group", "crew", "--wait", "1").split()
    assert sorted(map(int, first + rest)) == list(range(20))
    listed = json.loads(shell.run_here("groups", "--json"))["groups"]
    assert {"group": "crew", "members": 0, "lag": 0} in listed
    (topic,) = [
        one for one in json.loads(shell.run_here("topics", "--json"))["topics"] if one["topic"] == "Work"
    ]
    assert topic["messages"] == 20
    with shell.start("lag", "--group", "crew", "--watch", "--json") as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["queues"]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) == 0


def test_dead_letters_are_sent_once_more(shell: Shell) -> None:
    state = local.read_state(shell.folder)
    assert state is not None
    shell.run("produce", "Letters", "--key", "k1", "--tag", "red", data=b"0\n1\n2")
    with BlockingConsumer("reader", state.namesrv, options=LETTERS) as consumer:
        consumer.subscribe("Letters")

        def take() -> list[ReceivedMessage]:
            messages: list[ReceivedMessage] = []
            until_blocking(lambda: messages.extend(consumer.poll(3, 0.5)) or len(messages) >= 3)
            return sorted(messages, key=lambda one: one.body)

        for message in take():
            consumer.retry_later(message, delay_level=-1)
        told = shell.run_here("resend", "--group", "reader")
        assert told == "3 dead letters of reader sent to %RETRY%reader\n"
        messages = take()
        assert [(one.body, one.topic, one.tags, one.keys) for one in messages] == [
            (b"%d" % number, "Letters", "red", ("k1",)) for number in range(3)
        ]
        consumer.ack(*messages)
    assert json.loads(shell.run_here("resend", "--group", "reader", "--json"))["sent"] == 0
    assert len(shell.run_here("resend", "--group", "reader", "--again", "--dry-run").splitlines()) == 3
    one = ("--group", "reader", "--id", messages[2].message_id, "--to", "Letters")
    assert shell.run_here("resend", *one) == "1 dead letters of reader sent to Letters\n"
    assert len(shell.rows("tail", "Letters", "--last", "10", "--no-follow")) == 4


def test_dead_letters_at_the_limit_of_properties_are_sent_once_more(shell: Shell) -> None:
    state = local.read_state(shell.folder)
    assert state is not None
    sizes = [32_500, 32_550, 32_600, 32_645]
    with BlockingProducer("filler", state.namesrv) as producer:
        for size in sizes:
            producer.send(Message("Full", b"%d" % size, properties={"big": "x" * size}))
    with BlockingConsumer("full", state.namesrv, options=LETTERS) as consumer:
        consumer.subscribe("Full")

        def take() -> list[ReceivedMessage]:
            messages: list[ReceivedMessage] = []
            until_blocking(lambda: messages.extend(consumer.poll(4, 0.5)) or len(messages) >= len(sizes))
            return messages

        for message in take():
            consumer.retry_later(message, delay_level=-1)
        shell.run_here("resend", "--group", "full")
        again = take()
    assert sorted(len(one.properties["big"]) for one in again) == sizes


def test_a_body_that_does_not_decode_stops_no_command(shell: Shell) -> None:
    state = local.read_state(shell.folder)
    assert state is not None
    shell.run("produce", "Odd", data=b"before")
    for queue_id in range(4):
        asyncio.run(send_raw(state.namesrv, "Odd", b"no stream", sys_flag=1, queue_id=queue_id))
    shell.run("produce", "Odd", data=b"behind")
    commands = (
        ("tail", "Odd", "--last", "20", "--no-follow"),
        ("browse", "Odd"),
        ("consume", "Odd", "--group", "odd", "--count", "6"),
    )
    for command in commands:
        rows = shell.rows(*command)
        assert sorted(row["body"] for row in rows) == ["before", "behind", *["no stream"] * 4]
        faults = [row.get("body_fault", "") for row in rows if " " in row["body"]]
        assert all("not a zlib stream" in fault for fault in faults)
    with BlockingConsumer("odd-letters", state.namesrv, options=LETTERS) as consumer:
        consumer.subscribe("Odd")
        messages: list[ReceivedMessage] = []
        until_blocking(lambda: messages.extend(consumer.poll(6, 0.5)) or len(messages) >= 6)
        [bad, *_] = [one for one in messages if one.body_fault]
        consumer.retry_later(bad, delay_level=-1)
    shell.run_here("resend", "--group", "odd-letters", "--to", "Odd")
    rows = [row for row in shell.rows("tail", "Odd", "--last", "20", "--no-follow") if " " in row["body"]]
    assert len(rows) == 5
    assert all(row["body_fault"] for row in rows), "the flag went with it: who can decode it still does"


def test_tail_outlives_a_broker_and_leaves_no_group(shell: Shell) -> None:
    shell.run("produce", "News", data=b"old\n")
    before = group_names(shell)
    with shell.start("tail", "News", stderr=subprocess.DEVNULL) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"old\n"
        shell.run("produce", "News", data=b"new\n")
        assert tail.stdout.readline() == b"new\n"
        broker = local.running_state(shell.folder).servers[1]
        os.kill(broker.pid, signal.SIGKILL)
        until_blocking(lambda: is_back(shell, broker.pid))
        shell.run("produce", "News", data=b"newer\n")
        assert tail.stdout.readline() == b"newer\n"
        tail.send_signal(signal.SIGTERM)
        assert tail.wait(PATIENCE_S) == 0
    assert group_names(shell) == before


def group_names(shell: Shell) -> list[str]:
    """Returns the group names, without their progress: the broker's death loses its last seconds."""
    return sorted(group["group"] for group in json.loads(shell.run_here("groups", "--json"))["groups"])


def is_back(shell: Shell, old_pid: int) -> bool:
    server = local.running_state(shell.folder).servers[1]
    return server.pid != old_pid and server.state == "ready"


@pytest.mark.parametrize("command", [("tail", "--last", "1000"), ("consume", "--group", "head")])
def test_a_reader_that_goes_is_a_good_end(shell: Shell, command: tuple[str, ...]) -> None:
    shell.run("produce", "Piped", data=b"line\n" * 2_000)
    name, *options = command
    with shell.start(name, "Piped", *options, stderr=subprocess.PIPE) as process:
        out: IO[bytes] | None = process.stdout
        assert out is not None
        assert process.stderr is not None
        assert out.readline() == b"line\n"
        out.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == b""


def test_errors_name_the_next_step(shell: Shell, tmp_path: Path) -> None:
    for arguments in (
        ("tail", "None"),
        ("consume", "None", "--group", "g"),
        ("browse", "None"),
    ):
        text = shell.run_here(*arguments, code=1)
        assert "'None'" in text
        assert "`tandemmq topics`" in text
    assert "`tandemmq groups`" in shell.run_here("lag", "--group", "nobody", code=1)
    assert "`tandemmq up`" in shell.run_here("topics", "--namesrv", "127.0.0.1:1", code=1)
    assert "with spaces" in shell.run_here("produce", "with spaces", code=2)
    assert "NAME=VALUE" in shell.run_here("produce", "T", "--property", "x", code=2)
    assert "does not exist" in shell.run_here("produce", "T", "--file", str(tmp_path / "none"), code=2)
    assert "is a directory" in shell.run_here("produce", "T", "--file", str(tmp_path), code=2)
    assert "without '|'" in shell.run_here("produce", "T", "x", "--tag", "a||b", code=2)
    assert "'KEYS' is reserved" in shell.run_here("produce", "T", "x", "--property", "KEYS=x", code=2)
    assert "exclude each other" in shell.run_here("produce", "T", "x", "--size", "5", code=2)
    assert "separate tags by ||" in shell.run_here("tail", "T", "--tag", "a|b", code=2)
    assert "exclude each other" in shell.run_here("tail", "T", "--json", "--format", "x", code=2)
    assert "TEXT is empty" in shell.run_here("produce", "T", "x", "", code=2)
    for arguments in (
        ("consume", "T", "--group", "a b"),
        ("lag", "--group", "a b"),
        ("resend", "--group", "a b"),
        ("groups", "describe", "a b"),
        ("dlq", "show", "a b"),
    ):
        assert "the group 'a b'" in shell.run_here(*arguments, code=2)
    for arguments in (("topics", "create", "a b"), ("request", "a b", "x"), ("topics", "describe", "a b")):
        assert "the topic 'a b'" in shell.run_here(*arguments, code=2)
    assert "needs the group" in shell.run_here("lag", "--topic", "T", code=2)
    assert "need --listen" in shell.run_here("mcp", "--host-name", "x", code=2)
    assert "`tandemmq up`" in Shell(tmp_path).run_here("topics", code=1)


def test_times_are_read() -> None:
    import typer

    assert parse_when("1795406662932") == 1795406662932
    assert parse_when("2026-11-23T04:00:00+00:00") == 1795406400000
    assert parse_when("1h") < parse_when("10m") < parse_when("0s")
    assert parse_when("9" * 20 + "d") == parse_when("9" * 400 + "d") == 0
    for text in ("soon", "9" * 23, "9" * 5000):
        with pytest.raises(typer.BadParameter, match="10m"):
            parse_when(text)
