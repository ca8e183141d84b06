"""`tandemmq audit`: are master and slaves the same?

Exit codes: 0 everything that both keep is equal, 1 a difference (or a slave that is ahead), 2 something could
not be compared, or not even be asked for.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tandemmq.admin.audit import Comparison, Outcome, compare_logs
from tandemmq.admin.command import AsJson, Cluster, NameServers, run
from tandemmq.admin.render import Answer, Table
from tandemmq.admin.targets import MASTER_ID, Target, Tools, find_targets
from tandemmq.errors import ConfigError, TandemError

EXIT_DIFFERENT: Final = 1
EXIT_UNKNOWN: Final = 2
_EXITS: Final = {
    Outcome.EQUAL: 0,
    Outcome.DIFFERENT: EXIT_DIFFERENT,
    Outcome.SLAVE_AHEAD: EXIT_DIFFERENT,
    Outcome.APART: EXIT_UNKNOWN,
    Outcome.UNKNOWN: EXIT_UNKNOWN,
}
_COLUMNS: Final = ("broker", "master", "slave", "outcome", "equal_from", "equal_to", "first_difference")
_MORE: Final = ("master_end", "slave_end", "lag_bytes", "detail")


def audit(
    namesrv: NameServers = "",
    broker: Annotated[str, typer.Option("--broker", help="Only the brokers of this name.")] = "",
    cluster: Cluster = "",
    last_bytes: Annotated[
        int | None, typer.Option("--last", min=1, help="Compare only so many bytes at the common end.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the CommitLogs of masters and their slaves by checksums, while they run."""
    try:
        run(namesrv, lambda tools: audit_brokers(tools, broker, cluster, last_bytes), as_json=as_json)
    except TandemError as error:
        typer.echo(f"tandemmq: {error}", err=True)
        raise typer.Exit(EXIT_UNKNOWN) from None


async def audit_brokers(tools: Tools, broker_name: str, cluster: str, last_bytes: int | None) -> Answer:
    """A row for each slave; the exit code is a difference's before that of what could not be compared."""
    by_name: dict[tuple[str, str], list[Target]] = {}
    for target in await find_targets(tools, cluster=cluster):
        if not broker_name or target.broker_name == broker_name:
            by_name.setdefault((target.cluster, target.broker_name), []).append(target)
    if not by_name:
        raise ConfigError(f"no broker {broker_name!r} is registered")
    table = Table("replicas", _COLUMNS + _MORE)
    codes, notes = {0}, []
    for (_, name), targets in by_name.items():
        master = next((one.address for one in targets if one.broker_id == MASTER_ID), None)
        slaves = [one.address for one in targets if one.broker_id != MASTER_ID]
        if master is None:
            notes.append(f"{name} has no master to compare with")
            codes.add(EXIT_UNKNOWN)
            continue
        if not slaves:
            notes.append(f"{name} has no slave")
        for slave in slaves:
            found = await compare_logs(tools.remoting, master, slave, last_bytes=last_bytes)
            codes.add(_EXITS[found.outcome])
            table.rows.append((name, master, slave, *_values(found)))
    return Answer([table], notes, exit_code=EXIT_DIFFERENT if EXIT_DIFFERENT in codes else max(codes))


def _values(found: Comparison) -> tuple[object, ...]:
    ends = (found.master_end, found.slave_end, found.lag_bytes)
    detail = found.detail or (found.outcome.value if found.outcome is not Outcome.EQUAL else None)
    ranges = (found.equal_from, found.equal_to, found.first_difference)
    return (found.outcome.name, *ranges, *ends, detail)
