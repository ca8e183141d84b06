"""One in-process cluster for the reads of operators' tools, and their connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tandemmq.manage.tools import Tools, open_tools
from tandemmq.testing import Cluster


@asynccontextmanager
async def open_cluster(*, slave: bool = False, **settings: object) -> AsyncIterator[tuple[Cluster, Tools]]:
    """Yields a cluster with these broker settings, and the tools connected to it."""
    async with Cluster(slave=slave, settings=settings) as cluster, open_tools(cluster.name_servers) as tools:
        yield cluster, tools
