"""The state of an elected group as its controllers report it, and a planned change of the master."""

from __future__ import annotations

from elected_hosts import GROUP, ElectedHosts

from tandemmq.api.calls import call
from tandemmq.api.controller import find_leader, hand_over_group, read_sync_states
from tandemmq.errors import NotLeader, TandemError
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.replica import BrokerEpochs, GroupSyncState
from tandemmq.protocol.codes import RequestCode
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import until

ROUND_S_MAX = 60.0
"""The time in which the group must have reached the state that a round waits for."""


class ElectedGroup:
    """Requests to the controllers and brokers of the hosts. `close` ends its connections."""

    def __init__(self, hosts: ElectedHosts) -> None:
        self._hosts = hosts
        self.remoting = RemotingClient(network=TcpNetwork(), clock=LoopClock())

    async def close(self) -> None:
        await self.remoting.close()

    async def whole(self) -> int:
        """Waits until all three brokers are in the set; returns the number of the master."""
        found: list[int] = []
        by_address = {address: number for number, address in self._hosts.addresses.items()}

        async def is_whole() -> bool:
            self._hosts.check_alive()
            state = await self.state()
            if state is None or state.master_address is None or len(state.in_sync) != len(by_address):
                return False
            found[:] = [by_address[state.master_address]]
            return True

        await until(is_whole, "three in sync", ROUND_S_MAX, not_yet=(TandemError, KeyError))
        return found[0]

    async def leader(self) -> str:
        """Returns the address of the leading controller."""
        reasons: list[str] = []
        for address in self._hosts.controller_addresses.values():
            try:
                return await find_leader(self.remoting, address, timeout_s=1.0)
            except TandemError as error:
                reasons.append(str(error))
        raise TandemError("; ".join(reasons))

    async def state(self) -> GroupSyncState | None:
        states = await read_sync_states.within(1.0, self.remoting, await self.leader(), [GROUP])
        return states.get(GROUP)

    async def epochs(self, address: str) -> BrokerEpochs:
        answer = await call(self.remoting, address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return decode_body(answer.body, BrokerEpochs)

    async def hand_over_to(self, number: int) -> None:
        """Makes the broker of this host the master."""
        state = await self.state()
        assert state is not None
        ids = {one.address: one.broker_id for one in state.in_sync}
        target = ids[self._hosts.addresses[number]]

        async def is_done() -> bool:
            controller = await self.leader()
            _, after = await hand_over_group(self.remoting, controller, GROUP, target, clock=LoopClock())
            return after.master_id == target

        # The controllers may have to find a leader first, on a busy machine.
        await until(is_done, f"{target} is the master", ROUND_S_MAX, not_yet=(NotLeader,))
