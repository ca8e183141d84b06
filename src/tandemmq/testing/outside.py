"""OutsideCluster: a cluster that runs already, with the methods of a test cluster that need no faults."""

from __future__ import annotations

from typing import NoReturn, Self

from tandemmq.client import Admin
from tandemmq.testing.cluster import CLIENT, Cluster, ClusterFailed
from tandemmq.testing.member import ClusterMember


class OutsideCluster(Cluster):
    """A cluster that runs already, at `name_servers`; one that is RocketMQ's, too. It is neither started nor
    stopped, and a fault raises ClusterFailed.
    """

    def __init__(self, name_servers: str) -> None:
        super().__init__()
        self.name_servers = name_servers

    async def start(self) -> Self:
        """Returns once a name server has answered. Raises BrokerUnreachable when none does."""
        async with Admin(self.name_servers, options=CLIENT) as admin:
            await admin.cluster_info()
        return self

    async def close(self) -> None:
        """Does nothing."""

    async def create_topic(self, topic: str, *, queue_count: int = 4) -> None:
        """Creates a topic; returns once it is in the routes."""
        async with Admin(self.name_servers, options=CLIENT) as admin:
            await admin.create_topic(topic, queue_count=queue_count)

    async def heal(self) -> None:
        """Does nothing: there are no faults."""

    def _require_master(self) -> NoReturn:
        raise ClusterFailed(
            f"the cluster at {self.name_servers} runs outside of this test: only a cluster of the test's own"
            " has faults, addresses of its brokers, and a clock"
        )

    def _members(self) -> list[ClusterMember]:
        self._require_master()


__all__ = ["OutsideCluster"]
