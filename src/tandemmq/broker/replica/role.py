"""A broker's role in its group of replicas: serves its log, and as a slave copies a master's.

`ReplicaRole` owns both ends of replication and the config sync of one broker, the master named by the last
registration answer, and the wait of a master whose log may be incomplete. It only composes; the rules are in
`replication` and in the modules beside this one. `SlaveReporter` and `SlaveReports` are the two sides of
TANDEM_TELL_SLAVE_STATE, by which a slave reports its name to its master, and the reason if it has halted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

import msgspec

from tandemmq.api.replica import report_slave_state
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.replica.ha_status import describe_master, describe_slave, lag_seconds
from tandemmq.broker.replica.replica import GroupReplica
from tandemmq.broker.replica.tail_check import TailCheck, TailWait
from tandemmq.broker.second_master import MasterClaim
from tandemmq.errors import BadRequest, ConfigError, RequestRejected, TandemError
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import TellSlaveStateRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import parse_address, render_address
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import (
    DETAIL_CHARS_MAX,
    NAME_CHARS_MAX,
    REASON_CHARS_MAX,
    LogRange,
    ReportedHalt,
    SlaveName,
    SlaveNotice,
    SlaveState,
)
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict
from tandemmq.replication.shell import (
    MasterStatus,
    ReplicationMaster,
    ReplicationSlave,
    ReplicationSlaveStatus,
)
from tandemmq.runtime.ports import Address, Clock, Network
from tandemmq.runtime.tasks import TimedEvent

PERIOD_S: Final = 5.0
_LASTING: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION})
"""Error codes that the next attempt would get again."""


@dataclass(eq=False)
class SlaveReporter:
    """The slave's side of TANDEM_TELL_SLAVE_STATE. `run` is its task; `master` returns the remoting address
    to report to, or None.

    Strategy:   the slave reports its state once per connection before the first report, at once when it
                halts, and every PERIOD_S, because a restarted master has forgotten it. Support is detected by
                trying: a master that does not support the request, or does not permit it for this slave's
                account, is not asked again while it keeps its address; nothing else changes.
    Invariants: a failure does not affect the copy; the next period tries again.
    """

    name: SlaveName
    _: KW_ONLY
    status: Callable[[], ReplicationSlaveStatus]
    master: Callable[[], str | None]
    own_address: Callable[[], str]
    client: RemotingClient
    clock: Clock

    def __post_init__(self) -> None:
        self._is_due = TimedEvent(self.clock)
        self._unsupported_by: str | None = None
        """The address of a master that does not accept reports."""

    def wake(self) -> None:
        """Sends the next report at once."""
        self._is_due.set()

    async def run(self) -> None:
        """Sends reports periodically. Never returns."""
        while True:
            self._is_due.clear()
            status = self.status()
            if status.halt is not None or status.state is SlaveState.TRANSFERRING:
                await self.report()
            await self._is_due.wait(PERIOD_S)

    async def report(self) -> None:
        """Reports the current state; returns when the master knows it, or cannot be reached."""
        master = self.master()
        if master != self._unsupported_by:
            self._unsupported_by = None
        if master is None or self._unsupported_by is not None:
            return
        try:
            await report_slave_state(self.client, master, self._describe(self.status()))
        except RequestRejected as error:
            if error.code in _LASTING:
                self._unsupported_by = master
        except TandemError:
            pass  # the config sync reports it

    def _describe(self, status: ReplicationSlaveStatus) -> TellSlaveStateRequest:
        halt = status.halt
        detail = None if halt is None else f"{halt.reason.value}: {halt.detail}"[:DETAIL_CHARS_MAX]
        return TellSlaveStateRequest(
            broker_name=self.name.broker_name,
            broker_id=self.name.broker_id,
            ha_address=render_address(status.local_address),
            log_end=status.log_end,
            is_copying=status.state is SlaveState.TRANSFERRING,
            halt_reason=None if halt is None else halt.reason.name,
            halt_offset=None if halt is None else halt.log_offset,
            halt_detail=detail,
            address=self.own_address(),
        )


ADDRESS_COUNT_MAX: Final = 64
"""The most addresses kept; the slave that reported longest ago is dropped."""


class SlaveReports:
    """The master's side of TANDEM_TELL_SLAVE_STATE: reads the request. What is kept of it, and for how long,
    is decided by `ReplicationMaster`.
    """

    def __init__(self, master: ReplicationMaster) -> None:
        self._master = master
        self._addresses: dict[SlaveName, str] = {}

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.TANDEM_TELL_SLAVE_STATE: self.handle_report}

    def handle_report(self, _channel: Channel, command: Command) -> Command:
        request = command.decode(TellSlaveStateRequest)
        notice = read_notice(request)
        self._master.on_notice(notice)
        # A peer must not redirect this broker to other hosts: only the host of an accepted replication
        # connection counts.
        if request.address is not None and self._master.has_connection(notice.ha_address):
            host = _read_address(request.address)[0]
            if host == notice.ha_address[0]:
                self._addresses.pop(notice.name, None)
                self._addresses[notice.name] = request.address
                if len(self._addresses) > ADDRESS_COUNT_MAX:
                    del self._addresses[next(iter(self._addresses))]
        return command.reply()

    @property
    def addresses(self) -> list[str]:
        """The addresses that connected slaves reported for requests to them."""
        return list(self._addresses.values())


def read_notice(request: TellSlaveStateRequest) -> SlaveNotice:
    """Returns the notice in the request.

    Raises:  BadRequest with the invalid field.
    """
    if not 1 <= len(request.broker_name) <= NAME_CHARS_MAX:
        raise BadRequest(
            f"brokerName has {len(request.broker_name)} characters; allowed are 1..{NAME_CHARS_MAX}"
        )
    if request.broker_id < 0 or request.log_end < 0:
        raise BadRequest(f"brokerId {request.broker_id} and maxOffset {request.log_end} must not be negative")
    return SlaveNotice(
        name=SlaveName(request.broker_name, request.broker_id),
        ha_address=_read_address(request.ha_address),
        log_end=request.log_end,
        is_copying=request.is_copying,
        halt=_read_halt(request),
    )


def _read_address(text: str) -> Address:
    try:
        return parse_address(text)
    except ConfigError as error:
        raise BadRequest(f"haAddress: {error}") from None


def _read_halt(request: TellSlaveStateRequest) -> ReportedHalt | None:
    if request.halt_reason is None:
        return None
    detail = request.halt_detail or ""
    if len(request.halt_reason) > REASON_CHARS_MAX or len(detail) > DETAIL_CHARS_MAX:
        raise BadRequest(
            f"haltReason has {len(request.halt_reason)} characters, haltDetail {len(detail)}; "
            f"allowed are {REASON_CHARS_MAX} and {DETAIL_CHARS_MAX}"
        )
    return ReportedHalt(reason=request.halt_reason, log_offset=request.halt_offset or 0, detail=detail)


FIXED_ADDRESS_CHARS_MIN = 6
"""A shorter haMasterAddress counts as unset, as in RocketMQ (spec replication 7)."""


class ReplicaRole(GroupReplica):
    """The replication of one broker. Every broker listens for slaves; a slave also follows a master."""

    def __init__(
        self,
        core: BrokerCore,
        options: ReplicationOptions,
        on_fatal: Callable[[BaseException], None],
        *,
        network: Network,
        claim: MasterClaim,
    ) -> None:
        super().__init__(core, options, on_fatal)
        store, client, clock, own = self._store, self._client, self._clock, core.options
        is_fixed = len(own.ha_master_address) >= FIXED_ADDRESS_CHARS_MIN
        self._fixed_ha_address = own.ha_master_address if is_fixed else ""
        self._fixed_address = own.ha_master_remoting_address or None
        self._claim = claim
        self.master = ReplicationMaster(store, options, network=network, clock=clock, on_fatal=on_fatal)
        self._check_tail = TailCheck(self._checksums, client=client, master=self._master_address)
        self.slave = ReplicationSlave(
            store,
            options,
            self._introduce_and_check,
            network=network,
            clock=clock,
            on_fatal=on_fatal,
        )
        self._slave_reports = SlaveReports(self.master)
        self._slave_reporter = SlaveReporter(
            SlaveName(own.broker_name, own.broker_id),
            status=self.slave.status,
            master=self._master_address,
            own_address=core.own_address,
            client=client,
            clock=clock,
        )
        self.tail_wait = TailWait(
            self._checksums,
            client=client,
            clock=clock,
            record_bytes_max=options.record_bytes_max,
            listed=claim.listed_slaves,
            reported=lambda: self._slave_reports.addresses,
            other_master=claim.other_master,
        )
        self.slave.on_following = self._begin_copy
        self.slave.on_halted = self._slave_reporter.wake
        self.slave.on_lost = lambda: self.on_master_lost()
        self.on_master_lost: Callable[[], None] = lambda: None
        """Set by the owner: called when the master's current address must be looked up."""
        self.is_master_known = not self._is_slave
        """On a slave: True if the last registration answer named a master (spec replication 8.3)."""

    def routes(self) -> dict[int, Handler]:
        return super().routes() | self._slave_reports.routes() | self.tail_wait.routes()

    async def start(self, host: str, port: int) -> Address:
        """Starts replication and returns the address that slaves dial. A slave follows as soon as it knows
        its master.
        """
        address = await self.master.start(host, port)
        if self._is_slave:
            if self._fixed_ha_address:
                self.slave.set_master(self._fixed_ha_address)
            self.config_sync.set_master(self._fixed_address)
            await self.slave.start()
            self._scope.start("slave_reporter", self._slave_reporter.run())
        self._start()
        return address

    async def stop(self) -> None:
        await super().stop()
        await self.slave.stop()
        await self.master.stop()

    def is_copied(self, broker_id: int, part: LogRange) -> bool:
        return self.master.is_copied(broker_id, part)

    def on_registered(self, master_address: str | None, ha_address: str | None) -> None:
        """Handles the group's master as named by the first name server that answered (spec replication 7).

        Without a master the config sync pauses; the replication address is kept and still dialled.
        """
        if not self._is_slave:
            return
        self.is_master_known = bool(master_address)
        was_unknown = self.config_sync.master is None
        self.config_sync.set_master(master_address or self._fixed_address)
        if was_unknown and self.config_sync.master is not None:
            self.slave.check_again()
        if ha_address and not self._fixed_ha_address:
            self.slave.set_master(ha_address)

    async def _heal_all(self) -> None:
        await super()._heal_all()
        self.master.wake()

    async def wait_for_tail(self) -> None:
        """Waits until the log of a master that may lack acknowledged messages is settled."""
        await self.tail_wait.run()
        self.master.on_settled()

    @property
    def is_disconnected(self) -> bool:
        """True on a slave without a connection to its master: its address for it may be outdated."""
        return self._is_slave and self.slave.status().state in _DISCONNECTED

    def _begin_copy(self) -> None:
        """Prepares the store and the config sync, before the first byte of this connection is stored."""
        self._store.deletions.begin_copy()
        self.config_sync.begin_copy()

    async def _introduce_and_check(self, log_end: int) -> TailVerdict:
        """Returns the verdict on the end of this log. Before that, it reports this slave to the master and
        repairs what it can.

        If the logs differ, this one may have damage that was not detected yet.
        """
        await self._slave_reporter.report()
        await self._log_heal.try_now()
        verdict = await self._check_tail(log_end)
        if verdict.outcome is not TailOutcome.DIFFERENT:
            return verdict
        at = verdict.log_offset
        await self._store.scrub(at, log_end)
        await self._log_heal.try_now()
        damaged = next((one for one in self._store.damaged_ranges if one.begin <= at < one.end), None)
        if damaged is None:
            return await self._check_tail(log_end)
        detail = f"bytes {damaged.begin} to {damaged.end} of this log are damaged and not repaired yet"
        return replace(verdict, outcome=TailOutcome.FAILED, detail=detail)

    async def _copies(self) -> list[str]:
        """Returns the addresses of other copies of the log: the master, or the known slaves."""
        if self._is_slave:
            master = self._master_address()
            return [] if master is None else [master]
        listed = await self._claim.listed_slaves()
        return list(dict.fromkeys((*(listed or {}).values(), *self._slave_reports.addresses)))

    def _master_address(self) -> str | None:
        """Returns the master's remoting address: the reported one, or else the port before the HA port, where
        brokers listen by default (spec decisions 1).
        """
        if self.config_sync.master is not None:
            return self.config_sync.master
        ha_address = self.slave.status().master_address
        if ha_address is None:
            return None
        host, port = parse_address(ha_address)
        return render_address((host, port - 1)) if port > 1 else None

    def _followed(self) -> str | None:
        status = self.slave.status()
        if status.state is not SlaveState.TRANSFERRING or status.tail is None:
            return None
        return status.tail.run_id

    # The state of replication, for reports.

    def master_status(self) -> MasterStatus | None:
        """Returns the state of the slaves; every broker listens for them."""
        return self.master.status()

    def slave_status(self) -> ReplicationSlaveStatus | None:
        return self.slave.status() if self._is_slave else None

    def status(self) -> HaStatus:
        if self._is_slave:
            return describe_slave(self.slave.status())
        now_ms = self._clock.now_ms()
        status = describe_master(self.master.status(), lambda end: lag_seconds(self._store, end, now_ms))
        return msgspec.structs.replace(status, waiting=self.tail_wait.reason or None)


_DISCONNECTED = frozenset({SlaveState.DIALING, SlaveState.PAUSED})
