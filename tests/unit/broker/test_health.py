"""A slave's readiness by what comes from its master."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.broker.health import BrokerHealth
from tandemmq.replication.core.progress import SlaveState, StartRule

STORED_AT_MS = 1_000_000


def fault_of(copied_after_ms: int, read_after_ms: int, rule: StartRule | None = None) -> str:
    """Returns the fault of a slave whose newest message was copied, and whose master was heard, so long after
    the message was stored.
    """
    status = SimpleNamespace(
        halt=None,
        state=SlaveState.TRANSFERRING,
        copied_at=STORED_AT_MS + copied_after_ms,
        last_read_at=STORED_AT_MS + read_after_ms,
        start_rule=rule,
    )
    store: Any = SimpleNamespace(
        dispatcher=SimpleNamespace(stored_at_ms=STORED_AT_MS),
        facts=lambda: SimpleNamespace(is_failed=False, refusal=None),
        unverified_reason="",
    )
    replica: Any = SimpleNamespace(slave_status=lambda: status, synced_at=1)
    registration: Any = SimpleNamespace(fault="")
    health = BrokerHealth(
        store, replica, registration, is_slave=True, is_stopping=lambda: False, role_fault=lambda: ""
    )
    (found,) = [one.fault for one in health.read() if one.name == "replication"]
    return found


@pytest.mark.parametrize(
    ("copied_after_ms", "read_after_ms", "is_ready"),
    [(9_000, 9_000, True), (13_000, 13_000, False), (13_000, 13_900, False), (13_000, 18_000, True)],
)
def test_a_slave_to_which_only_heartbeats_come_is_ready(
    copied_after_ms: int, read_after_ms: int, is_ready: bool
) -> None:
    fault = fault_of(copied_after_ms, read_after_ms)
    assert fault == ("" if is_ready else "13 s behind the master, and at most 10 s are allowed")


@pytest.mark.parametrize("rule", [StartRule.SLAVE_TOO_OLD, StartRule.SLAVE_AHEAD])
def test_heartbeats_of_a_master_that_refuses_the_log_show_nothing(rule: StartRule) -> None:
    assert "13 s behind" in fault_of(13_000, 18_000, rule)
