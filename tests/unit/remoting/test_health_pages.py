"""The pages /health/live and /health/ready."""

from __future__ import annotations

import json

from tandemmq.remoting.health import Condition, live_page, ready_page


def test_a_server_that_answers_lives() -> None:
    answer = live_page()
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert json.loads(answer.body) == {"status": "live"}


def test_ready_names_the_condition_that_fails_and_its_reason() -> None:
    answer = ready_page([Condition("role"), Condition("registered", "192.0.2.1:9876 refuses")])
    assert answer.status == 503
    assert json.loads(answer.body) == {
        "status": "not ready",
        "conditions": [
            {"name": "role", "holds": True},
            {"name": "registered", "holds": False, "reason": "192.0.2.1:9876 refuses"},
        ],
    }
    assert ready_page([Condition("role")]).status == 200
