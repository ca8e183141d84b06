"""The closing line of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tally import BOTH, JAVA, OURS, Place, Tally, grpc_place_of, place_of


def item(name: str, **params: object) -> Any:
    marker = SimpleNamespace(kwargs=params.pop("told")) if "told" in params else None
    return SimpleNamespace(
        nodeid=f"tests/interop/{name}.py::test[{params}]",
        callspec=SimpleNamespace(params=params),
        get_closest_marker=lambda _: marker,
    )


def report(case: Any, outcome: str = "passed", when: str = "call") -> Any:
    return SimpleNamespace(nodeid=case.nodeid, outcome=outcome, when=when)


@pytest.mark.parametrize(
    ("case", "place"),
    [
        (item("test_interop_clients", line="4.9", servers="ours"), Place("java-4.9", OURS)),
        (item("test_interop_clients", line="5.x", servers="java"), Place("java-5.x", JAVA)),
        (item("test_interop_clients", line="5.3", servers="ours"), Place("java-5.3", OURS)),
        (item("test_interop_mqadmin", subject="ours"), Place("mqadmin", OURS)),
        (item("test_interop_transactions", cluster="quick_java_4"), Place("java-4.9", BOTH)),
        (item("test_interop_transactions", cluster="quick_ours"), Place("other", OURS)),
        (
            item("test_interop_stores", line="5.x", writer="java", told={"column": BOTH}),
            Place("java-5.x", BOTH),
        ),
        (item("test_interop_proxy", servers="ours", told={"row": "java-grpc"}), Place("java-grpc", OURS)),
        (item("test_interop_languages", language="go", case="pull", servers="ours"), Place("go", OURS)),
        (item("test_interop_spark", told={"row": "java-4.9"}), Place("java-4.9", BOTH)),
    ],
)
def test_place(case: Any, place: Place) -> None:
    assert place_of(case) == place


def test_only_cases_that_ran_and_passed_with_ours_are_counted() -> None:
    ours, java, skipped = (item("clients", line="4.9", servers=servers) for servers in ("ours", "java", "x"))
    tally = Tally()
    tally.expect([ours, java, skipped])
    for case in (ours, java):
        tally.add(report(case, when="setup"))
        tally.add(report(case))
    others = "java-5.3=0 java-5.x=0 java-grpc=0 mqadmin=0 c++=0 go=0 node=0 python=0 rust=0"
    assert tally.closing_line(True) == f"INTEROP OK java-4.9=1 {others} failed=0"
    tally.add(report(skipped, "skipped", "setup"))
    tally.add(report(item("somewhere else"), "failed"))
    assert tally.closing_line(False) == f"INTEROP FAILED java-4.9=1 {others} failed=1"
    tally.add(report(java, "failed", "teardown"))
    assert tally.failed_count == 2


def test_a_language_whose_tools_are_missing_is_told_as_not_run() -> None:
    go, rust = (item("languages", language=language, servers="ours") for language in ("go", "rust"))
    tally = Tally()
    tally.expect([go, rust])
    tally.add(report(go, "skipped"))
    tally.add(report(rust, "failed"))
    assert tally.closing_line(False) == (
        "INTEROP FAILED java-4.9=0 java-5.3=0 java-5.x=0 java-grpc=0 mqadmin=0"
        " c++=0 go=not-run node=0 python=0 rust=0"
        " failed=1"
    )


def test_a_run_of_our_client_needs_both_makers() -> None:
    ours, java = (
        item("test_interop_client", cluster=cluster, told={"row": "other"}) for cluster in ("ours", "java_5")
    )
    tally = Tally()
    tally.expect([ours, java])
    tally.add(report(ours))
    assert tally.client_line(True) == "CLIENT FAILED ours=1 java=0 failed=0"
    tally.add(report(java))
    assert tally.client_line(True) == "CLIENT OK ours=1 java=1 failed=0"
    tally.add(report(java, "failed", "teardown"))
    assert tally.client_line(False) == "CLIENT FAILED ours=1 java=1 failed=1"


def test_a_run_of_the_grpc_clients_counts_what_went_through_our_proxy() -> None:
    cases = [
        item("grpc", language="go", case="normal", servers=made) for made in ("ours", "mixed", "control")
    ]
    acl = item("grpc", language="java")
    assert not Tally().is_grpc
    tally = Tally()
    tally.expect([*cases, acl], grpc_place_of)
    for case in (*cases, acl):
        tally.add(report(case))
    assert tally.is_grpc
    assert tally.grpc_line(True) == "GRPC OK python=0 node=0 go=2 java=1 rust=0 failed=0"
    assert tally.grpc_table()[3].split() == ["go", "1", "1", "1"]
    tally.add(report(cases[1], "skipped", "setup"))
    assert tally.grpc_line(False) == "GRPC FAILED python=0 node=0 go=2 java=1 rust=0 failed=1"
