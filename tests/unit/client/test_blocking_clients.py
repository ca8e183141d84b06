"""The blocking clients have what the asyncio clients have."""

from __future__ import annotations

import inspect

import pytest

from tandemmq import client

NAMES = ("Producer", "TransactionProducer", "Consumer", "PushConsumer", "PopConsumer", "Admin")
LOOP = "belongs to the event loop"
CALLED = "is called by other parts of the client"
LEFT_OUT = {
    "instance": LOOP,
    "start_send": f"its future {LOOP}; several threads, or `send_many`, keep many sends in flight",
    "start_batch": f"its future {LOOP}; `send_many` keeps many batches in flight",
    "send_system": CALLED,
    "ack_all": "`ack` accepts several messages",
    "fetch": "the iteration, and `poll`, wait for messages",
    "add_handler": "`subscriber` adds handlers before and after the start",
    "stop_soon": "`close` may be called by any thread",
    "wait_stopped": "`wait_closed` waits for the end",
    "describe": CALLED,
    "handle_broker_request": CALLED,
    "name_servers": "the application has named them",
}
"""The public names that the blocking clients lack, with the reasons."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", NAMES)
def test_a_blocking_client_has_every_public_name(name: str) -> None:
    lacking = public(getattr(client, name)) - public(getattr(client, f"Blocking{name}"))
    assert lacking <= LEFT_OUT.keys()


def test_no_reason_is_outdated() -> None:
    used: set[str] = set()
    for name in NAMES:
        used |= public(getattr(client, name)) - public(getattr(client, f"Blocking{name}"))
    assert used == LEFT_OUT.keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_methods_have_the_same_parameters(name: str) -> None:
    """Methods that `blocking` makes have those of their originals by construction."""
    kind, facade = getattr(client, name), getattr(client, f"Blocking{name}")
    for method in public(kind) & public(facade):
        ours, theirs = getattr(facade, method), getattr(kind, method)
        if not inspect.isfunction(ours):
            continue
        parameters = list(inspect.signature(ours).parameters)
        if parameters[1:] != ["args", "kwargs"]:
            assert parameters == list(inspect.signature(theirs).parameters), method
