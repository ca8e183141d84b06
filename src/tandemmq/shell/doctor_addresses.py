"""`tandemmq doctor --from-here`: judges the addresses that brokers announce to clients on this machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from tandemmq.manage.addresses import Announced, Announcements
from tandemmq.protocol.networks import INTERNAL
from tandemmq.shell.doctor_lines import DoctorLine, ok, problem, warning

AREA: Final = "addresses"


def judge_announced(answers: Sequence[Announcements]) -> Iterator[DoctorLine]:
    """Yields a line for each announced address, and for name servers that disagree."""
    seen: set[object] = set()
    for answer in answers:
        if answer.error:
            fix = "start it, or remove it from namesrvAddr and --namesrv"
            yield problem("name servers", f"{answer.name_server} does not answer: {answer.error}", fix)
            continue
        for one in answer.addresses:
            if (one.target, one.network) not in seen:
                seen.add((one.target, one.network))
                yield _judge(one)
        if not answer.addresses:
            fix = "give the brokers an address in it, or use networkFallback=registered"
            yield problem(AREA, f"{answer.name_server} announces no broker to network {answer.network}", fix)
    yield from _judge_views([answer for answer in answers if not answer.error])


def _judge(one: Announced) -> DoctorLine:
    broker_id, address = one.target.broker_id, one.target.address
    place = f"{one.label} is announced as {address} in network {one.network}"
    if one.found is None:
        return problem(AREA, f"{place}, and cannot be reached from here: {one.error}", _remedy(one))
    if one.found == ("", ""):
        fix = "docs/security.md explains how tools sign requests"
        return warning(AREA, f"{place}: a broker answers that does not tell this tool its name", fix)
    if one.found != (one.target.broker_name, str(broker_id)):
        name, number = one.found
        text = f"{place}, but {name}:{number} answers there"
        return problem(AREA, text, f"correct the mapping of {address}, or {_setting(one)}")
    if not one.is_mapped:
        text = f"{place}, its registered address, because it has none there; it can be reached from here"
        return warning(AREA, text, _setting(one))
    return ok(AREA, f"{place}, and answers there")


def _setting(one: Announced) -> str:
    wanted = "an address of this broker that clients here can reach"
    if one.network == INTERNAL:
        return f"set brokerIP1 of {one.label} to {wanted}"
    return (
        f"set advertisedAddresses={one.network}=HOST:PORT at {one.label}, {wanted}; for RocketMQ's brokers:"
        f" `tandemmq admin updateKvConfig -s ADVERTISED_ADDRESSES -k {one.target.broker_name}"
        f".{one.target.broker_id}.{one.network} -v HOST:PORT`"
    )


def _remedy(one: Announced) -> str:
    if one.network == INTERNAL:
        return (
            "open the port; or, if this machine is outside the brokers' network, give its network a listener"
            " (networkListeners of the name server) and the brokers advertisedAddresses there"
        )
    return f"open or forward the port, or {_setting(one)}"


def _judge_views(answers: Sequence[Announcements]) -> Iterator[DoctorLine]:
    """Yields a problem if a client here would get different addresses from different name servers."""
    by_view = defaultdict(list)
    for answer in answers:
        by_view[answer.view].append(f"{answer.name_server} ({answer.network})")
    if len(by_view) > 1:
        groups = " and ".join(", ".join(servers) for servers in by_view.values())
        fix = "list only name servers that answer this network, with the same settings and all brokers"
        yield problem("name servers", f"a client here gets different addresses from {groups}", fix)
