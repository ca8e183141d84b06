"""`tandemmq doctor`: examines a cluster from outside, and reports problems and how to fix them.

A problem loses messages or stops senders or readers, now or soon. A warning may be
intended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer

from tandemmq.admin.options import option
from tandemmq.api import broker_admin, controller, nameserver
from tandemmq.api.calls import call, call_raw
from tandemmq.client.options import parse_name_servers
from tandemmq.errors import NotLeader, NotNameServer, NotPermitted, TandemError
from tandemmq.manage.addresses import read_announced
from tandemmq.manage.cluster import count_of
from tandemmq.manage.settings import named_controllers
from tandemmq.manage.tools import Target, Tools, open_tools, targets_of, tools_options
from tandemmq.protocol.bodies import codec
from tandemmq.protocol.bodies.replica import SyncStateData
from tandemmq.protocol.bodies.route import ClusterInfo
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.properties_file import parse_properties
from tandemmq.protocol.requests.controller import NextBrokerIdRequest
from tandemmq.protocol.topic_names import is_system_topic
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import is_loopback
from tandemmq.remoting.tls import make_client_tls
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.shell import local
from tandemmq.shell.doctor_addresses import judge_announced
from tandemmq.shell.doctor_lines import Checkup, DoctorLine, ok, problem, warning
from tandemmq.shell.doctor_production import judge_production
from tandemmq.shell.session import AsJson, NameServers, find_name_servers, run
from tandemmq.units import MASTER_ID, MIB

CLOCK_MS_MAX: Final = 5_000
"""The largest difference of clocks that is accepted: brokers report their uptime in whole seconds, and the
request takes time.
"""
DISK_PROBLEM: Final = 0.85
DISK_WARNING: Final = 0.75
LAG_BYTES_MAX: Final = 64 * MIB
TOPICS_MAX: Final = 1_000
"""The most topics whose routes are examined."""

_UPTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_MUST_BE_EQUAL: Final = {
    "mappedFileSizeCommitLog": "problem",
    "messageDelayLevel": "problem",
    "maxMessageSize": "problem",
    "flushDiskType": "warning",
    "fileReservedTime": "warning",
}
"""The settings that must be equal at a master and its slave, and the level of a difference."""


FromHere = Annotated[
    bool, option("--from-here", "Check only whether this machine can reach each broker's announced address.")
]


Production = Annotated[
    bool, option("--production", "Check also what a cluster needs in production, as `check` does.")
]


def doctor(
    namesrv: NameServers = "",
    from_here: FromHere = False,
    production: Production = False,
    as_json: AsJson = False,
) -> None:
    """Look for problems in a cluster and report how to fix them; exit code 1 when there is a problem."""
    if from_here and production:
        raise typer.BadParameter("--from-here and --production exclude each other: give only one")
    servers = find_name_servers(namesrv)

    async def work() -> int:
        async with open_tools(servers) as tools:
            names = parse_name_servers(servers)
            if from_here:
                findings = list(judge_announced(await read_announced(tools, names)))
            else:
                findings = await examine(tools, names, for_production=production)
        _print(findings, as_json=as_json)
        return 1 if any(one.level == "problem" for one in findings) else 0

    run(work)


def check(namesrv: NameServers = "", as_json: AsJson = False) -> None:
    """Check whether a cluster is ready for production, as `doctor --production` does: problems, copies,
    failover, access, metrics; exit code 1 when there is a problem.
    """
    doctor(namesrv, production=True, as_json=as_json)


def _print(findings: Sequence[DoctorLine], *, as_json: bool) -> None:
    counts = {level: sum(one.level == level for one in findings) for level in ("ok", "warning", "problem")}
    if as_json:
        typer.echo(json.dumps({"counts": counts, "findings": [asdict(one) for one in findings]}, indent=2))
        return
    for one in findings:
        typer.echo(f"{one.level:8} {one.area:12} {one.text}")
        if one.fix:
            typer.echo(f"{'':21} -> {one.fix}")
    typer.echo(f"{counts['problem']} problems, {counts['warning']} warnings")


async def examine(tools: Tools, servers: Sequence[str], *, for_production: bool = False) -> list[DoctorLine]:
    """Returns all findings about the cluster; a server that does not answer is a finding, too."""
    findings: list[DoctorLine] = []
    infos: dict[str, ClusterInfo] = {}
    for address in servers:
        try:
            infos[address] = await nameserver.query_cluster_info(tools.remoting, address)
        except NotNameServer as error:
            fix = "list only name servers in namesrvAddr and --namesrv"
            findings.append(problem("name servers", str(error), fix))
        except TandemError as error:
            fix = "start it, or remove it from namesrvAddr and --namesrv"
            findings.append(problem("name servers", f"{address} does not answer: {error}", fix))
    if infos:
        info = next(iter(infos.values()))
        findings += judge_name_servers(infos)
        targets = targets_of(info)
    else:  # the local cluster is known without a name server
        info = ClusterInfo()
        targets = [Target("", name, None, address) for name, address in local.brokers_of(servers)]
    checkups = []
    for target in targets:
        checkup = await _check_up(tools, target)
        if isinstance(checkup, DoctorLine):
            findings.append(checkup)
            continue
        checkups.append(checkup)
        findings += judge_broker(checkup, LoopClock().now_ms(), servers)
    if infos:
        findings += judge_groups(info, checkups)
    names = sorted({one.broker_name for one in targets})
    findings += await judge_controllers(tools.remoting, find_controllers(servers, checkups), names)
    if infos:
        findings += await _judge_routes(tools, info)
    if infos or checkups:
        findings += await _judge_ports(servers, checkups)
    if for_production:
        findings += judge_production(servers, checkups)
    return findings


async def _check_up(tools: Tools, target: Target) -> Checkup | DoctorLine:
    try:
        facts = await broker_admin.query_runtime_info(tools.remoting, target.address)
        settings = await broker_admin.query_broker_config(tools.remoting, target.address)
        replication = await broker_admin.query_ha_status(tools.remoting, target.address)
    except TandemError as error:
        if isinstance(error, NotPermitted):
            text = f"{target} does not let this tool read its state: {error}"
            return problem("clients", text, "docs/security.md explains how tools sign requests")
        fix = "check that it runs and that brokerIP1 is reachable; `tandemmq status` shows local brokers"
        return problem("brokers", f"{target} does not answer: {error}", fix)
    return Checkup(target, facts, settings, replication)


def judge_name_servers(infos: Mapping[str, ClusterInfo]) -> Iterator[DoctorLine]:
    """Compares the name servers: they do not know each other, so every broker must be registered at each of
    them.
    """
    known = {address: {target.address for target in targets_of(info)} for address, info in infos.items()}
    everything = set().union(*known.values())
    for address, brokers in known.items():
        missing = sorted(everything - brokers)
        if missing:
            fix = "name all name servers in the namesrvAddr of every broker"
            yield problem("name servers", f"{address} does not know {', '.join(missing)}", fix)
        elif not brokers:
            fix = "start a broker with namesrvAddr set to this name server"
            yield problem("brokers", f"no broker is registered at {address}", fix)
        else:
            yield ok("name servers", f"{address} answers and knows {len(brokers)} brokers")


def judge_broker(one: Checkup, now_ms: int, servers: Sequence[str]) -> Iterator[DoctorLine]:
    """Judges one broker by its own answers."""
    role = one.facts.get("brokerRole", "")
    is_master = one.target.broker_id == MASTER_ID
    if role and is_master == (role == "SLAVE"):
        fix = "brokerId is 0 at a master and above 0 at a slave"
        text = f"{one.target} is registered with id {one.target.broker_id} and has the role {role}"
        yield problem("brokers", text, fix)
    if _is_loopback(one.target.address) and not all(_is_loopback(server) for server in servers):
        fix = "set brokerIP1 to an address that clients can reach"
        text = f"{one.target} registered a loopback address, which clients on other machines cannot reach"
        yield problem("addresses", text, fix)
    yield from _judge_clock(one, now_ms)
    yield from _judge_disk(one)
    yield from _judge_replication(one)
    yield from _judge_refusals(one)
    yield from _judge_speedups(one)
    # An elected master waits for its SyncStateSet, not for a number.
    is_elected = one.settings.get("enableControllerMode") == "true"
    if role == "SYNC_MASTER" and one.settings.get("inSyncReplicas") == "1" and not is_elected:
        fix = "set inSyncReplicas=2, or brokerRole=ASYNC_MASTER if that is intended"
        yield warning("settings", f"{one.target} is a SYNC_MASTER that does not wait for slaves", fix)
    if role == "ASYNC_MASTER" and _to_int(one.settings.get("inSyncReplicas")) > 1:
        fix = "set brokerRole=SYNC_MASTER, or inSyncReplicas=1"
        text = f"{one.target} has inSyncReplicas above 1, but as ASYNC_MASTER does not wait for slaves"
        yield warning("settings", text, fix)


def _judge_speedups(one: Checkup) -> Iterator[DoctorLine]:
    state = one.facts.get(codec.SPEEDUPS_KEY)  # only our brokers have it
    if state and state.startswith("refused"):
        fix = "install tandemmq-speedups of the release or commit of tandemmq, or uninstall it"
        yield warning("speedups", f"tandemmq-speedups at {one.target} is {state}", fix)
    elif state:
        yield ok("speedups", f"tandemmq-speedups at {one.target} is {state}")


def _judge_clock(one: Checkup, now_ms: int) -> Iterator[DoctorLine]:
    booted, uptime = _to_int(one.facts.get("bootTimestamp")), _UPTIME.search(one.facts.get("runtime", ""))
    if not booted or uptime is None:
        return
    days, hours, minutes, seconds = map(int, uptime.groups())
    behind_ms = now_ms - booted - (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    if abs(behind_ms) > CLOCK_MS_MAX:
        text = f"the clocks of {one.target} and this machine differ by {abs(behind_ms) / 1000:.0f} s"
        fix = "run a time service (chrony, systemd-timesyncd) on both machines"
        yield problem("clocks", text, fix)
    else:
        yield ok("clocks", f"the clocks of {one.target} and this machine agree")


def _judge_disk(one: Checkup) -> Iterator[DoctorLine]:
    try:
        ratio = float(one.facts.get("commitLogDiskRatio", ""))
    except ValueError:
        return
    text = f"the disk of {one.target} is {ratio:.0%} full"
    fix = "free space or lower fileReservedTime: a full disk deletes old messages, then rejects sends"
    level = "problem" if ratio >= DISK_PROBLEM else "warning" if ratio >= DISK_WARNING else "ok"
    yield DoctorLine(level, "disk", text, "" if level == "ok" else fix)
    refusal = one.facts.get(codec.STORE_REFUSAL_KEY)
    if refusal and not one.replication.waiting:
        fix = "free space, or use a larger disk; for an empty store lower mappedFileSizeCommitLog"
        if "disk" not in refusal and "space" not in refusal:
            fix = "see docs/operations/logs.md; the broker's log has the time of the failure"
        yield problem("disk", f"the store of {one.target} rejects messages: {refusal}", fix)
    if _to_int(one.facts.get("damagedRangeCount")):
        text = f"{one.target} has {one.facts['damagedBytes']} damaged bytes in its log"
        fix = "see `tandemmq store check` and docs/operations/runbooks.md"
        yield problem("disk", text, fix)


def _judge_replication(one: Checkup) -> Iterator[DoctorLine]:
    status = one.replication
    if one.facts.get(codec.HISTORY_DOUBT_KEY):
        text = f"the history of {one.target} does not fit its group: {one.facts[codec.HISTORY_DOUBT_KEY]}"
        fix = 'see "A history does not fit" in docs/operations/runbooks.md'
        yield problem("replication", text, fix)
    if _to_int(one.facts.get(codec.HISTORY_DIFFERED_KEY)):
        count = one.facts[codec.HISTORY_DIFFERED_KEY]
        text = f"{one.target} had a different history than its master in equal terms ({count} times)"
        fix = "its log has the offsets (replica_history.differs); `tandemmq audit` compares the logs"
        yield problem("replication", text, fix)
    if not status.is_master:
        if status.client.halt_reason is not None:
            text = (
                f"{one.target} has stopped copying: {status.client.halt_reason} {status.client.halt_detail}"
            )
            yield problem("replication", text, "see docs/operations/runbooks.md")
        return
    if status.waiting:
        fix = "start its slaves, or give up the messages that only they hold: `tandemmq admin acceptLog`"
        yield problem("replication", f"{one.target} does not serve yet: {status.waiting}", fix)
    connected = [slave for slave in status.connections if slave.away_ms is None]
    required = _to_int(one.settings.get("inSyncReplicas"))
    if one.facts.get("brokerRole") == "SYNC_MASTER" and 1 + len(connected) < required:
        text = f"{one.target} needs {required} copies including its own; connected slaves: {len(connected)}"
        fix = "start a slave; until then producers get no SEND_OK"
        yield problem("replication", text, fix)
    for slave in connected:
        if slave.lag_bytes > LAG_BYTES_MAX:
            text = f"slave {slave.address} is {slave.lag_bytes:,} bytes behind {one.target}"
            yield warning("replication", text, "check with `tandemmq admin haStatus` that it catches up")
        else:
            yield ok("replication", f"slave {slave.address} follows {one.target}")


def _judge_refusals(one: Checkup) -> Iterator[DoctorLine]:
    """Reports what the broker has rejected since it started, because rejected clients are often silent. Only
    TandemMQ brokers report it.
    """
    if codec.REFUSALS_KEY not in one.facts:
        return
    found = []
    if _to_int(one.facts.get(codec.DENIALS_KEY)):
        newest = one.facts.get(codec.NEWEST_DENIAL_KEY)
        text = f"{one.facts[codec.DENIALS_KEY]} requests by access control, the last {newest}"
        fix = "correct its key, or grant the right (`tandemmq admin createAcl`, or plain_acl.yml)"
        found.append((text, fix))
    if _to_int(one.facts.get(codec.REFUSED_CONNECTIONS_KEY)):
        text = f"{one.facts[codec.REFUSED_CONNECTIONS_KEY]} connections above its limit"
        found.append(
            (text, "find the client that opens them: its log has a `channel.refused` with the peer for each")
        )
    if _to_int(one.facts[codec.REFUSALS_KEY]):
        newest = one.facts.get(codec.NEWEST_REFUSAL_KEY)
        text = f"{one.facts[codec.REFUSALS_KEY]} requests of consumers, the last {newest}"
        found.append((text, "correct that group: `tandemmq admin consumerConnection -g GROUP` lists all"))
    if one.facts.get(codec.SEND_REFUSALS_KEY):
        text = f"sends with {one.facts[codec.SEND_REFUSALS_KEY]}"
        found.append(
            (
                text,
                "the producers' errors have the reason: the disk, a topic's perm, or a limit in its settings",
            )
        )
    for text, fix in found:
        yield warning("clients", f"{one.target} has rejected {text}", fix)
    if not found:
        yield ok("clients", f"{one.target} has rejected no requests since it started")


def judge_groups(info: ClusterInfo, checkups: Sequence[Checkup]) -> Iterator[DoctorLine]:
    """Checks that each group of brokers has a master, and that its members' settings agree."""
    for name, broker in sorted(info.brokers.items()):
        if MASTER_ID not in broker.addresses:
            fix = "start it: until then sends there fail, and consumers read from its slaves"
            yield problem("brokers", f"{name} has no master", fix)
        members = [one for one in checkups if one.target.broker_name == name]
        for key, level in _MUST_BE_EQUAL.items():
            values = {one.target: one.settings[key] for one in members if key in one.settings}
            if len(set(values.values())) > 1:
                text = f"{key} differs: " + ", ".join(
                    f"{text} at {target}" for target, text in values.items()
                )
                yield DoctorLine(level, "settings", text, "use the master's value: a slave may become master")


def find_controllers(servers: Sequence[str], checkups: Sequence[Checkup]) -> list[str]:
    """Returns the controllers that brokers name, and those of the local cluster that one of the name servers
    belongs to: its brokers may all be down.
    """
    named = [address for one in checkups for address in named_controllers(one.settings)]
    return list(dict.fromkeys((*named, *local.controllers_of(servers))))


async def judge_controllers(
    client: RemotingClient, addresses: Sequence[str], names: list[str]
) -> list[DoctorLine]:
    """Asks each controller for its leader, and a leader for the groups of brokers."""
    findings, leaders = [], {}
    for address in addresses:
        try:
            leaders[await controller.find_leader(client, address)] = address
        except NotLeader as error:
            fix = (
                "start a majority of the controllers: without a leader no master is replaced; sends continue"
            )
            findings.append(problem("controllers", str(error), fix))
        except TandemError as error:
            fix = "start it, or remove it from controllerAddr of the brokers"
            text = f"the controller {address} does not answer: {error}"
            findings.append(problem("controllers", text, fix))
    for leader in leaders:
        try:
            state = await controller.read_all_sync_states(client, leader, names)
        except TandemError as error:
            text = f"the leading controller {leader} does not answer: {error}"
            findings.append(problem("controllers", text, "see its log, then run doctor again"))
        else:
            findings += judge_sync_states(leader, state)
    return findings


def judge_sync_states(leader: str, state: SyncStateData) -> Iterator[DoctorLine]:
    """Judges the leading controller's state of each group, and the reports of groups unknown to it."""
    found = []
    for name, group in sorted(state.groups.items()):
        if group.waits_for:
            fix = "start them; `tandemmq admin cleanBrokerMetadata` gives up a broker that is lost for good"
            found.append((f"{name} has no master: {group.waits_for}", fix))
        if group.contradiction:
            fix = "start every broker of its set, so the newer state is adopted; or choose by electMaster"
            found.append((f"{name}: {group.contradiction}", fix))
        for reason in group.refused or ():
            found.append((f"{name} refuses a broker: {reason}", "until then it copies and serves nothing"))
    for name, report in sorted((state.unknown or {}).items()):
        fix = "start every broker of its set, then the group is adopted; or choose its master: electMaster"
        found.append((f"the controllers do not know {name}: {report}", fix))
    for text, fix in found:
        yield problem("controllers", text, fix)
    if not found:
        yield ok("controllers", f"{leader} leads and knows {len(state.groups)} groups")


async def _judge_routes(tools: Tools, info: ClusterInfo) -> list[DoctorLine]:
    topics = [name for name in await tools.cluster_admin.topics() if not is_system_topic(name)]
    findings = []
    for topic in topics[:TOPICS_MAX]:
        try:
            route = await tools.cluster_admin.topic_route(topic)
        except TandemError as error:
            findings.append(warning("routes", f"{topic} has no route: {error}", "delete the topic"))
            continue
        unknown = sorted({queue.broker_name for queue in route.queues} - set(info.brokers))
        if unknown:
            text = f"{topic} has queues at {', '.join(unknown)}, which are not registered"
            findings.append(problem("routes", text, "start that broker"))
    return findings or [
        ok("routes", f"{min(len(topics), TOPICS_MAX)} topics have routes to registered brokers")
    ]


_OPEN_PORTS: Final = {
    "name server": (
        "register brokers and change its settings",
        "close the port to other machines or use TLS with client certificates: name servers have no accounts",
    ),
    "broker": (
        "do everything",
        "use access control, TLS with client certificates, or a closed port: docs/security.md",
    ),
    "controller": (
        "elect masters and change its settings",
        "set controllerSharedSecret on controllers and brokers: docs/security.md",
    ),
}


async def _judge_ports(servers: Sequence[str], checkups: Sequence[Checkup]) -> list[DoctorLine]:
    """Finds the ports that other machines reach and that serve clients without signature and certificate."""
    ports = [(address, "name server", RequestCode.GET_NAMESRV_CONFIG) for address in servers]
    for one in checkups:
        ports.append((one.target.address, "broker", RequestCode.GET_BROKER_CONFIG))
        named = named_controllers(one.settings)
        ports += [(address, "controller", RequestCode.GET_CONTROLLER_CONFIG) for address in named]
    findings = []
    tls = make_client_tls(tools_options().tls)
    anonymous = RemotingClient(network=TcpNetwork(), clock=LoopClock(), tls=tls)
    try:
        for address, kind, code in dict.fromkeys(ports):
            is_open = await _serves(anonymous, address, code)
            if is_open and (kind != "controller" or await _serves_changes(anonymous, address)):
                right, fix = _OPEN_PORTS[kind]
                text = f"any client that reaches the {kind} {address} may {right}"
                findings.append(warning("security", text, fix))
    finally:
        await anonymous.close()
    return findings or [ok("security", "no port serves unauthenticated clients of other machines")]


async def _serves(anonymous: RemotingClient, address: str, code: RequestCode) -> bool:
    """Returns True if a server shows its settings to an unauthenticated client, on a port that other machines
    reach.
    """
    try:
        text = bytes((await call(anonymous, address, code)).body)
        settings = parse_properties(text, address)
    except TandemError:
        return False
    bound = settings.get("bindAddress")
    return not (_is_loopback(address) if bound is None or not bound.text else is_loopback(bound.text))


async def _serves_changes(anonymous: RemotingClient, address: str) -> bool:
    """Returns True if a controller would accept changes of an unauthenticated client; the request itself
    changes nothing.
    """
    header = NextBrokerIdRequest(cluster_name="doctor", broker_name="doctor")
    try:
        answer = await call_raw(anonymous, address, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
    except TandemError:
        return False
    return answer.code != ResponseCode.NO_PERMISSION


def _is_loopback(address: str) -> bool:
    return is_loopback(address.rpartition(":")[0])


def _to_int(text: str | None) -> int:
    return count_of(text) or 0
