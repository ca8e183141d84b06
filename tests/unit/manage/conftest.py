"""The cluster of the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from managed_cluster import ManagedCluster, managed_cluster


@pytest.fixture
async def managed() -> AsyncIterator[ManagedCluster]:
    async with managed_cluster() as subject:
        yield subject
