"""The rigs that several files use as fixtures; a file whose tests need another set-up has its own fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import controller_rig
import pytest
from broker_rig import Peer, running_broker
from replica_group import Group, running_group
from replica_pair import Peers

from tandemmq.broker.broker import Broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with default options."""
    async with running_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    """A connection to `broker`."""
    async with Peer(broker) as peer:
        yield peer


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[Peers]:
    """A master and a slave that copy without brokers around them."""
    peers = Peers(tmp_path)
    yield peers
    await peers.stop()


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    """A broker group: a master and its slaves."""
    async with running_group(tmp_path) as group:
        yield group


@pytest.fixture
async def rig() -> AsyncIterator[controller_rig.Rig]:
    """One controller and brokers that only send heartbeats."""
    rig = controller_rig.Rig()
    await rig.start()
    yield rig
    await rig.close()
