"""The id of a broker in controller mode: a kill at any step loses no id and assigns none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.memory import MemoryDisk
from tandemmq.broker.autoswitch.identity import (
    Application,
    ForeignGroup,
    GroupIdentity,
    IdentityFiles,
    obtain_id,
)
from tandemmq.controller.groups import ApplyId, Groups, encode_command
from tandemmq.errors import ConfigError, RequestRejected, StoreError
from tandemmq.runtime.machine import LoopClock
from tandemmq.units import Buffer

PATH = Path("/store/brokerIdentity")
ADDRESS = "10.0.0.5:10911"


class Killed(BaseException):
    """The process ends here."""


class Steps:
    """Ends the process before or after the step with that number, counted over disk and controllers."""

    def __init__(self, last: float = float("inf")) -> None:
        self.last = last
        self.count = 0

    def step(self) -> None:
        self.count += 1
        if self.count > self.last:
            raise Killed


class KillingDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.steps = Steps()

    def write_atomically(self, path: Path, data: Buffer, *, keep_backup: bool = False) -> None:
        self.steps.step()
        super().write_atomically(path, data, keep_backup=keep_backup)
        self.steps.step()

    def remove(self, path: Path) -> None:
        self.steps.step()
        super().remove(path)
        self.steps.step()


class Giver:
    """The controllers' own state machine, without the network."""

    def __init__(self, groups: Groups, steps: Steps, name: str = "broker-a") -> None:
        self.groups, self.steps, self.name = groups, steps, name
        self.next_ids: list[int] = []

    async def next_id(self) -> int:
        self.steps.step()
        group = self.groups.get(self.name)
        return self.next_ids.pop() if self.next_ids else 1 if group is None else group.next_id

    async def apply_id(self, broker_id: int, check_code: str) -> None:
        self.steps.step()
        command = ApplyId("C", self.name, broker_id, check_code)
        outcome = self.groups.apply(encode_command(command))
        self.steps.step()  # the answer is lost
        if outcome.code:
            raise RequestRejected(outcome.remark, code=outcome.code)


async def start(disk: KillingDisk, giver: Giver, address: str = ADDRESS) -> int:
    disk.steps = giver.steps
    files = IdentityFiles(PATH, cluster="C", name="broker-a", disk=disk)
    return await obtain_id(files, giver, address=address, clock=LoopClock())


async def test_a_kill_at_every_step_leads_to_one_id() -> None:
    last = 0
    while True:
        groups, disk = Groups(), KillingDisk()
        try:
            await start(disk, Giver(groups, Steps(last)))
            break
        except Killed:
            disk.power_cut()
        assert await start(disk, Giver(groups, Steps())) == 1
        assert await start(disk, Giver(groups, Steps(0))) == 1, "the controllers are not asked again"
        group = groups.get("broker-a")
        assert group is not None
        assert list(group.replicas) == [1]
        assert disk.read_bytes(PATH) == b"C#broker-a#1"
        last += 1
    assert last == 9


async def test_brokers_that_start_together_get_ids_of_their_own() -> None:
    groups = Groups()
    disks = [KillingDisk() for _ in range(3)]
    assert await start(disks[0], Giver(groups, Steps())) == 1
    late = Giver(groups, Steps())
    late.next_ids = [1]  # it asked before the first one had applied
    assert await start(disks[1], late, "10.0.0.6:10911") == 2
    # A store that was copied before the id was assigned has a check code of its own.
    files = IdentityFiles(PATH, cluster="C", name="broker-a", disk=disks[2])
    await files.save_application(Application(2, f"{ADDRESS};1"))
    assert await start(disks[2], Giver(groups, Steps())) == 3
    assert [await start(disk, Giver(groups, Steps(0))) for disk in disks] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("D#broker-a#1", ConfigError),
        ("C#broker-b#1", ConfigError),
        ("C#broker-a", StoreError),
        ("C#broker-a#one", StoreError),
        ("C#broker-a#0", StoreError),
        ("", StoreError),
    ],
)
async def test_a_file_that_is_not_this_brokers_stops_the_start(text: str, error: type[Exception]) -> None:
    disk = KillingDisk()
    disk.make_dirs(PATH.parent)
    disk.write_atomically(PATH, text.encode())
    with pytest.raises(error):
        await start(disk, Giver(Groups(), Steps()))


async def test_a_refusal_that_is_not_about_the_id_keeps_the_application() -> None:
    groups, disk = Groups(), KillingDisk()
    groups.apply(encode_command(ApplyId("other", "broker-a", 1, "x;1")))

    class Away(Giver):
        async def apply_id(self, broker_id: int, check_code: str) -> None:
            raise RequestRejected("no leader", code=2007)

    with pytest.raises(RequestRejected):
        await start(disk, Away(groups, Steps()))
    files = IdentityFiles(PATH, cluster="C", name="broker-a", disk=disk)
    application = files.load_application()
    assert application is not None
    assert application.broker_id == 2


GROUP_PATH = Path("/store/brokerGroup")
GROUP_ID, OTHER_ID = "0123456789abcdef" * 2, "f" * 32


def group_identity(disk: MemoryDisk) -> GroupIdentity:
    group = GroupIdentity(GROUP_PATH, broker=f"the broker broker-a of C at {ADDRESS}", disk=disk)
    group.load()
    return group


async def test_a_group_is_learned_once_and_every_other_one_is_refused() -> None:
    disk = MemoryDisk()
    group = group_identity(disk)
    group.check(OTHER_ID, "a controller")  # a directory of an older release matches any group
    await group.learn(None, "a controller of RocketMQ")
    assert (group.group_id, disk.exists(GROUP_PATH)) == (None, False)
    await group.learn(GROUP_ID, "the controller c:9878")
    assert group.group_id == group_identity(disk).group_id == GROUP_ID
    for again in (group, group_identity(disk)):
        await again.learn(GROUP_ID, "the controller c:9878")
        again.check(None, "a slave of an older release")
        with pytest.raises(ForeignGroup) as refused:
            await again.learn(OTHER_ID, "the controller d:9878")
        for fact in (GROUP_ID, OTHER_ID, "d:9878", "broker-a of C", ADDRESS, "controllerAddr"):
            assert fact in str(refused.value)
    assert disk.read_bytes(GROUP_PATH) == GROUP_ID.encode()


async def test_a_group_that_cannot_be_kept_is_not_used() -> None:
    disk = KillingDisk()
    group = group_identity(disk)
    disk.steps.last = 0
    with pytest.raises(Killed):
        await group.learn(GROUP_ID, "c")
    assert group.group_id is None
    with pytest.raises(RequestRejected, match="is not a group id"):
        await group_identity(MemoryDisk()).learn("../../etc", "c")


@pytest.mark.parametrize("content", [b"", b"xyz", b"0" * 31, b"\xff" * 32])
def test_a_damaged_group_file_is_told_at_the_start(content: bytes) -> None:
    disk = MemoryDisk()
    disk.make_dirs(GROUP_PATH.parent)
    disk.write_atomically(GROUP_PATH, content)
    with pytest.raises(StoreError, match="brokerGroup"):
        group_identity(disk)
