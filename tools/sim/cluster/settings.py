"""The settings of one seed: the shape of the cluster, its guarantees, its load. Drawn once, then constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sim.dice import Dice
from tandemmq.replication.core.options import FirstTransfer
from tandemmq.store import BrokerRole, FlushMode

BROKER_NAME = "sim"
TOPIC = "Orders"
TAGS = ("red", "blue", "")
PASSING_TOPIC = "Passing"
"""A topic that operators delete and create again."""
WORK_NAMES = ("timed", "transaction", "filter", "pop", "numbered", "ordered", "renewed", "moved")
"""The kinds of work in `work/kinds.py`, without GROWING."""
GROWING = "growing"
"""The work of a seed that draws no other kind."""
WORK_COUNT_MAX = 3


FAULTS = {
    "lose master": 10,
    "lose slave": 8,
    "lose master for good": 4,
    "empty master": 3,
    "restart broker": 3,
    "fail a sync": 4,
    "stall a disk": 5,
    "fail writes": 4,
    "fill a disk": 3,
    "rot on a slave": 3,
    "lose name server": 3,
    "lose consumer": 5,
    "lose producer": 2,
    "partition": 6,
    "cut a port": 6,
    "break connections": 6,
    "stall": 6,
    "step a clock": 4,
}
"""The faults, with their relative frequencies (`faults.FaultInjector`); 0: only if it is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group: its name, its number of members, and the tags that it subscribes to ("*": all)."""

    name: str
    member_count: int
    tags: str

    def matches(self, tags: str) -> bool:
        return self.tags == "*" or self.tags == tags


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one seed's cluster."""

    name_server_count: int
    slave_count: int
    role: BrokerRole
    flush_mode: FlushMode
    has_pool: bool
    """True if the master answers sends that wait for nothing from its own memory
    (transientStorePoolEnable).
    """
    first_transfer: FirstTransfer
    commit_log_file_bytes: int
    transfer_bytes_max: int
    slow_sync_percent: int
    queue_count: int
    producer_count: int
    worker_count: int
    batch_linger_ms: float | None
    groups: tuple[Group, ...]
    latency_ms: tuple[float, float]
    cut_percent: int
    body_bytes_max: int
    wait_percent: int
    slave_read_enable: bool
    load_s: float
    pause_ms: tuple[int, int]
    in_sync_replicas: int = 2
    """The number of copies that an acknowledgement of a SYNC_MASTER promises, including the master's."""
    is_host_shared: bool = False
    """True if the slaves run on one machine, each with a disk of its own."""
    fault_names: tuple[str, ...] = ()
    """The only faults that occur; empty: all."""
    work: tuple[str, ...] = ()
    """The work of applications besides sending and pulling."""
    controller_count: int = 0
    """The number of controllers that elect the master; 0: an operator chose it."""
    producer_refresh_s: float = 2.0
    """The interval at which producers look up routes."""
    pair_percent: int = 0
    """The probability of a second fault of another kind while the first one lasts."""

    @property
    def is_sync_double_write(self) -> bool:
        """True if an acknowledgement promises two copies."""
        return self.role is BrokerRole.SYNC_MASTER

    @property
    def copy_count(self) -> int:
        """The number of copies that an acknowledgement promises."""
        return self.in_sync_replicas if self.is_sync_double_write else 1

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_mode is FlushMode.SYNC_FLUSH

    def describe(self) -> str:
        """Returns the settings in one line."""
        controllers = f"{self.controller_count} controllers, " if self.controller_count else ""
        members = ", ".join(f"{group.name} x{group.member_count} {group.tags}" for group in self.groups)
        return (
            f"{self.role.value} {self.flush_mode.value}{' with pool' if self.has_pool else ''}, "
            f"{self.copy_count} copies, "
            f"{controllers}{self.name_server_count} name servers, "
            f"{self.slave_count} slaves{' on one host' if self.is_host_shared else ''} "
            f"({self.first_transfer.value}), files of "
            f"{self.commit_log_file_bytes} bytes, {self.queue_count} queues, {self.producer_count} producers "
            f"x {self.worker_count}, {members}, {self.latency_ms[0]:g}..{self.latency_ms[1]:g} ms, "
            f"faults: {', '.join(self.fault_names) or 'all'}, {self.pair_percent} % in pairs"
            f"{', work: ' + ' '.join(self.work) if self.work else ''}"
        )


def draw_faults(dice: Dice, weights: Mapping[str, int] = FAULTS) -> tuple[str, ...]:
    """Draws mostly a few kinds of faults: these then occur often, and together. Empty: all kinds."""
    if dice.happens(20):
        return ()
    names = ["lose master"] if dice.happens(50) else []
    for _ in range(dice.between(1, 4)):
        names.append(dice.pick_weighted([(weight, name) for name, weight in weights.items()]))
    return tuple(name for name in weights if name in names)


def draw_settings(dice: Dice) -> Settings:
    """Draws settings. Two thirds of the seeds write synchronously to several nodes: that promise matters
    most.
    """
    role, flush_mode = dice.pick_weighted(
        (
            (4, (BrokerRole.SYNC_MASTER, FlushMode.ASYNC_FLUSH)),
            (4, (BrokerRole.SYNC_MASTER, FlushMode.SYNC_FLUSH)),
            (2, (BrokerRole.ASYNC_MASTER, FlushMode.SYNC_FLUSH)),
            (2, (BrokerRole.ASYNC_MASTER, FlushMode.ASYNC_FLUSH)),
        )
    )
    groups = [Group(name="all", member_count=dice.between(1, 3), tags="*")]
    if dice.happens(40):
        groups.append(Group(name="reds", member_count=dice.between(1, 2), tags="red"))
    slave_count = dice.pick_weighted(((3, 1), (1, 2)))
    return Settings(
        name_server_count=dice.between(1, 2),
        slave_count=slave_count,
        in_sync_replicas=dice.between(2, slave_count + 1),
        is_host_shared=slave_count > 1 and dice.happens(40),
        role=role,
        flush_mode=flush_mode,
        has_pool=role is BrokerRole.SYNC_MASTER and flush_mode is FlushMode.ASYNC_FLUSH and dice.happens(25),
        first_transfer=dice.pick_weighted(
            ((4, FirstTransfer.FIRST_FILE), (1, FirstTransfer.LAST_FILE)),
        ),
        commit_log_file_bytes=dice.pick((4096, 16_384, 65_536)),
        transfer_bytes_max=dice.pick((100, 1000, 32_768)),
        slow_sync_percent=dice.pick((0, 20, 80)),
        queue_count=dice.between(1, 5),
        producer_count=dice.between(1, 2),
        worker_count=dice.between(1, 3),
        batch_linger_ms=dice.pick((None, None, 0, 5)),
        groups=tuple(groups),
        latency_ms=dice.pick(((0.1, 0.5), (0.2, 5.0), (1.0, 40.0))),
        cut_percent=dice.pick((0, 10, 40)),
        body_bytes_max=dice.pick((20, 200, 1200)),
        wait_percent=dice.pick((100, 90)),
        slave_read_enable=dice.happens(70),
        load_s=float(dice.between(15, 45)),
        pause_ms=dice.pick(((0, 200), (20, 400), (50, 800))),
        work=_draw_work(dice),
        fault_names=draw_faults(dice),
        pair_percent=dice.pick((0, 20, 60)),
    )


def _draw_work(dice: Dice) -> tuple[str, ...]:
    """Draws few kinds at a time: each then occurs often, and in more circumstances."""
    names = list(WORK_NAMES)
    drawn = tuple(names.pop(dice.below(len(names))) for _ in range(dice.between(0, WORK_COUNT_MAX)))
    return drawn or (GROWING,)
