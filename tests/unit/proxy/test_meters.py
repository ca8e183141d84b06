"""The counts of a proxy: endings of calls by rpc, and their times."""

from __future__ import annotations

from tandemmq.proxy.meters import CallMeter, MethodMeter, ending_label
from tandemmq.proxy.rpc import SERVICE, GrpcCall, GrpcStatus, Method
from tandemmq.proxy.statuses import Code

HEARTBEAT, RECEIVE, TELEMETRY = (SERVICE + name for name in ("Heartbeat", "ReceiveMessage", "Telemetry"))


async def serve(_call: GrpcCall) -> None:
    """Serves nothing."""


def make_meter() -> tuple[CallMeter, dict[str, MethodMeter]]:
    methods = [
        Method(HEARTBEAT, serve),
        Method(RECEIVE, serve, is_held=True, is_poll=True),
        Method(TELEMETRY, serve, is_held=True),
    ]
    meter = CallMeter(methods)
    return meter, {method.name: method for method in meter}


def test_calls_are_counted_by_rpc_and_ending() -> None:
    meter, by_name = make_meter()
    for ending in (Code.OK, Code.OK, Code.TOO_MANY_REQUESTS, GrpcStatus.CANCELLED):
        meter.end(HEARTBEAT, ending, 0.002)
    assert by_name["Heartbeat"].endings == {Code.OK: 2, Code.TOO_MANY_REQUESTS: 1, GrpcStatus.CANCELLED: 1}
    assert by_name["ReceiveMessage"].endings == {}


def test_the_times_of_polls_and_streams_do_not_hide_those_of_calls() -> None:
    meter, by_name = make_meter()
    meter.end(HEARTBEAT, Code.OK, 0.002)
    meter.end(RECEIVE, Code.MESSAGE_NOT_FOUND, 20.0)
    meter.end(TELEMETRY, 0, 3600.0)
    call, poll = by_name["Heartbeat"].seconds, by_name["ReceiveMessage"].seconds
    assert call is not None
    assert poll is not None
    assert (call.count, call.total) == (1, 0.002)
    assert (poll.count, poll.total) == (1, 20.0)
    assert [by_name[name].is_poll for name in ("Heartbeat", "ReceiveMessage", "Telemetry")] == [
        False,
        True,
        False,
    ]
    assert by_name["Telemetry"].seconds is None


def test_methods_with_one_name_are_counted_together() -> None:
    methods = [Method("/a.Reflection/Info", serve, is_held=True), Method("/b.Reflection/Info", serve, True)]
    meter = CallMeter(methods)
    for method in methods:
        meter.end(method.path, 0, 1.0)
    assert [(one.name, one.endings) for one in meter] == [("Info", {0: 2})]


def test_an_ending_has_the_name_of_its_code_or_grpc_status() -> None:
    endings = (0, Code.OK, Code.FORBIDDEN, GrpcStatus.CANCELLED, GrpcStatus.DEADLINE_EXCEEDED)
    assert [ending_label(ending) for ending in endings] == [
        "OK",
        "OK",
        "FORBIDDEN",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
    ]
    assert not {code.name for code in Code if code is not Code.OK} & {status.name for status in GrpcStatus}
