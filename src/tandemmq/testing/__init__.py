"""Tools for tests of applications: a whole cluster inside the test's process, with injectable faults.

`Cluster` is for asyncio. `BlockingCluster` is the same for plain threads; pytest's fixtures use it
(`tandemmq.pytest_plugin`). `python -m tandemmq.testing` serves tests in other languages.
"""

from tandemmq.testing.blocking import BlockingCluster
from tandemmq.testing.cluster import Cluster, ClusterFailed
from tandemmq.testing.outside import OutsideCluster

__all__ = ["BlockingCluster", "Cluster", "ClusterFailed", "OutsideCluster"]
