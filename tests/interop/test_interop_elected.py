"""Java clients of both lines send and consume while an elected group of ours changes its master.

The master is killed, comes back as a slave, and the next one hands its office over. The program `Switch`
checks that nothing acknowledged is missing, or is at another offset than the acknowledgement named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from clusters import HOST, Cluster, broker_port, our_cluster
from java_peers import LINES, Conversation, programs
from tally import OURS

from ports import free_port
from tandemmq.api.controller import find_leader, hand_over_group, read_sync_states
from tandemmq.client import BlockingAdmin
from tandemmq.errors import TandemError
from tandemmq.launcher import Server
from tandemmq.protocol.bodies.replica import GroupSyncState
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import until_blocking

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300), pytest.mark.interop_case(column=OURS)]

T = TypeVar("T")

NAME = "elected"
TOPIC = "Switched"


class Elected:
    """A controller and three brokers that it elects the master of."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self.name_server = cluster.name_server
        self._controller = f"{HOST}:{free_port()}"
        settings: dict[str, object] = {
            "controllerDLegerPeers": f"n0-{self._controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": cluster.directory / "controller",
        }
        _start("controller", "controller", settings, cluster.directory, stack)
        self.brokers: dict[str, Server] = {}
        """By address."""
        for number in (1, 2, 3):
            port = broker_port()
            settings = {
                "brokerName": NAME,
                "brokerIP1": HOST,
                "brokerIP2": HOST,
                "listenPort": port,
                "haListenPort": port + 1,
                "namesrvAddr": cluster.name_server,
                "enableControllerMode": "true",
                "controllerAddr": self._controller,
                "storePathRootDir": cluster.directory / f"store-{number}",
                "mappedFileSizeCommitLog": 4 << 20,
            }
            server = _start(f"broker-{number}", "broker", settings, cluster.directory, stack)
            self.brokers[f"{HOST}:{port}"] = server

    def whole(self) -> str:
        """Waits until all three are in the set; the master's address."""
        found: list[str] = []

        def is_whole() -> bool:
            state = self._ask(self._state)
            if state is None or state.master_address is None or len(state.in_sync) != len(self.brokers):
                return False
            found[:] = [state.master_address]
            return True

        until_blocking(is_whole, "three in sync", not_yet=(TandemError,))
        return found[0]

    def hand_over(self) -> str:
        """The address of the new master, which is any of the others."""
        return str(self._ask(self._hand_over).master_address)

    async def _hand_over(self, client: RemotingClient) -> GroupSyncState:
        _, after = await hand_over_group(client, self._controller, NAME, None, clock=LoopClock())
        return after

    async def _state(self, client: RemotingClient) -> GroupSyncState | None:
        leader = await find_leader(client, self._controller)
        return (await read_sync_states(client, leader, [NAME])).get(NAME)

    @staticmethod
    def _ask(question: Callable[[RemotingClient], Awaitable[T]]) -> T:
        async def ask() -> T:
            client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
            try:
                return await question(client)
            finally:
                await client.close()

        return asyncio.run(ask())


def _start(name: str, command: str, settings: dict[str, object], directory: Path, stack: ExitStack) -> Server:
    pairs = [f"{key}={value}" for key, value in {"bindAddress": HOST, **settings}.items()]
    arguments = [part for pair in pairs for part in ("--set", pair)]
    server = Server(name, [command, *arguments], directory / f"{name}.log")
    stack.callback(server.kill)
    server.start()
    return server


@pytest.fixture
def elected(tmp_path: Path) -> Iterator[Elected]:
    with ExitStack() as stack, our_cluster(tmp_path) as cluster:
        yield Elected(cluster, stack)


@pytest.mark.parametrize("line", LINES)
def test_clients_go_on_when_the_master_changes(line: str, elected: Elected, tmp_path: Path) -> None:
    first = elected.whole()
    with BlockingAdmin(elected.name_server) as admin:
        admin.create_topic(TOPIC, queue_count=4)
    clients = Conversation(
        programs(LINES[line]), "Switch", elected.name_server, TOPIC, home=tmp_path / "clients"
    )
    try:
        clients.read_until("READY", 90)

        elected.brokers[first].kill()
        clients.say("")
        print("master killed:", *clients.read_until("GOES ON", 90)[-1:], flush=True)
        elected.brokers[first].start()
        second = elected.whole()
        assert second != first

        third = elected.hand_over()
        assert third != second
        clients.say("")
        print("handed over:", *clients.read_until("GOES ON", 90)[-1:], flush=True)
        assert elected.whole() == third

        print(*clients.finish("OK", 120), sep="\n", flush=True)
    finally:
        clients.kill()


@pytest.mark.parametrize("line", LINES)
def test_a_producer_sends_through_hand_overs_without_a_second_try(
    line: str, elected: Elected, tmp_path: Path
) -> None:
    """It knows the old master only, until it looks up the route, up to 30 s later."""
    elected.whole()
    with BlockingAdmin(elected.name_server) as admin:
        admin.create_topic(TOPIC, queue_count=4)
    producer = Conversation(
        programs(LINES[line]), "HandOver", elected.name_server, TOPIC, home=tmp_path / "clients"
    )
    try:
        producer.read_until("READY", 90)
        for _ in range(2):
            before = elected.whole()
            assert elected.hand_over() != before
            producer.say("")
            print("handed over:", *producer.read_until("GOES ON", 90)[-1:], flush=True)
        print(*producer.finish("OK", 120), sep="\n", flush=True)
    finally:
        producer.kill()
