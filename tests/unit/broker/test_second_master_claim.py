"""Two masters with one name: which of them yields, and when."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.second_master import MasterClaim, MasterSeniority
from tandemmq.errors import ConfigError
from tandemmq.runtime.machine import SeededRandom

NAME_SERVERS = ("n1:1", "n2:1")


class Claim(MasterClaim):
    """A claim whose name servers and other masters are tables that all claims share."""

    def __init__(self, world: World, address: str, started_at_ms: int, **options: Any) -> None:
        no_client: Any = None
        self.yields = 0

        def count() -> None:
            self.yields += 1

        super().__init__(
            BrokerOptions(broker_name="b", name_servers=NAME_SERVERS, **options),
            client=no_client,
            own_address=lambda: address,
            chance=SeededRandom(started_at_ms),
        )
        self.on_yield = count
        self.started_at_ms = started_at_ms
        self.world, self.address = world, address
        world.claims[address] = self

    async def _members(self, name_server: str) -> dict[int, str] | None:
        return self.world.members.get(name_server)

    async def _query_master(self, address: str) -> MasterSeniority | None:
        other = self.world.claims.get(address)
        if other is None or other.yielded_to:
            return None
        return MasterSeniority(other.started_at_ms, address)

    async def register(self, name_server: str) -> bool:
        """Registers like a link: the last broker to register becomes the master."""
        if not await self.may_register(name_server):
            return False
        self.world.members.setdefault(name_server, {})[0] = self.address
        return True


class World:
    def __init__(self) -> None:
        self.members: dict[str, dict[int, str]] = {name: {} for name in NAME_SERVERS}
        self.claims: dict[str, Claim] = {}


@pytest.mark.parametrize("starts", [(1, 2), (2, 1), (5, 5)])
@pytest.mark.parametrize("order", [*permutations("abab", 4)])
async def test_exactly_one_of_two_masters_yields_whoever_registers_first(
    starts: tuple[int, int], order: tuple[str, ...]
) -> None:
    world = World()
    claims = {"a": Claim(world, "a:1", starts[0]), "b": Claim(world, "b:1", starts[1])}
    for name in (*order, "a", "b", "a"):
        await claims[name].register("n1:1")
    later = "b" if starts in ((1, 2), (5, 5)) else "a"
    first = "a" if later == "b" else "b"
    assert (claims[later].yielded_to, claims[later].yields) == (claims[first].address, 1)
    assert (claims[first].yielded_to, claims[first].yields) == ("", 0)
    assert world.members["n1:1"] == {0: claims[first].address}


async def test_a_master_is_found_at_the_one_name_server_that_knows_it() -> None:
    world = World()
    first, second = Claim(world, "a:1", 1), Claim(world, "b:1", 2)
    assert await first.register("n1:1")
    assert await second.register("n2:1")
    assert await second.register("n2:1")  # no other master is there
    assert not await second.register("n1:1")
    assert not await second.register("n2:1")
    assert second.yielded_to == "a:1"


async def test_second_master_stays_refused_after_the_first_is_gone() -> None:
    """The other one has stored messages meanwhile, which an operator must not overlook."""
    world = World()
    first, second = Claim(world, "a:1", 1), Claim(world, "b:1", 2)
    await first.register("n1:1")
    assert not await second.register("n1:1")
    del world.claims["a:1"], world.members["n1:1"][0]
    assert not await second.register("n1:1")
    assert "a:1 is the master of b" in str(second.refusal())
    again = Claim(world, "a:1", 3)  # to the first one's next start it is not a second master
    await again.require_first()
    assert await again.register("n1:1")


async def test_a_master_that_does_not_answer_is_no_reason_to_yield() -> None:
    world = World()
    claim = Claim(world, "a:1", 2)
    for members in ({0: "b:1"}, {1: "b:1"}, {}):
        world.members["n1:1"] = members
        assert await claim.register("n1:1")
    del world.members["n1:1"]
    assert await claim.register("n1:1")
    assert not claim.yielded_to


async def test_only_masters_that_are_told_to_look_look() -> None:
    world = World()
    await Claim(world, "a:1", 1).register("n1:1")
    careless = Claim(world, "b:1", 2, refuse_second_master=False)
    assert await careless.may_register("n1:1")
    slave = Claim(world, "c:1", 3, broker_id=1)
    assert await slave.may_register("n1:1")
    assert not slave.is_watched
    await slave.require_first()
    with pytest.raises(ConfigError, match="is the master of b and answers"):
        await Claim(world, "d:1", 4).require_first()
