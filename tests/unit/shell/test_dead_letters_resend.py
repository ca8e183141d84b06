"""`tandemmq dlq resend` when a letter cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tandemmq.cli import app
from tandemmq.client import Message
from tandemmq.errors import BadRequest
from tandemmq.manage import dead_letters
from tandemmq.testing import BlockingCluster
from waits import until_blocking

SEND = dead_letters.broker_send.send


def test_a_letter_that_fails_does_not_repeat_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_one(client: Any, address: str, header: Any, body: bytes) -> Any:
        if body == b"2":
            raise BadRequest("a bad letter")
        return await SEND(client, address, header, body)

    monkeypatch.setattr(dead_letters.broker_send, "send", fail_one)
    with BlockingCluster() as cluster, cluster.producer() as producer:
        for topic in ("orders", "again"):
            cluster.create_topic(topic, queue_count=1)
        for number in range(3):
            producer.send(Message("orders", b"%d" % number))
        with cluster.consumer("orders", "readers") as consumer:
            given_up: list[bytes] = []

            def are_given_up() -> bool:
                for message in consumer.poll(32, 0.1):
                    consumer.retry_later(message, delay_level=-1)
                    given_up.append(bytes(message.body))
                return len(given_up) == 3

            until_blocking(are_given_up)
        words = ["dlq", "resend", "readers", "--to", "again", "-n", cluster.name_servers]
        first, second = (CliRunner().invoke(app, words) for _ in range(2))
        assert (first.exit_code, second.exit_code) == (1, 1)
        assert "a bad letter; 2 dead letters were already sent" in first.stderr
        assert "already sent" not in second.stderr
        assert [bytes(one.body) for one in cluster.published("again")] == [b"0", b"1"]
