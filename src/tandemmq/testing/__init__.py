"""For tests of applications: a whole cluster inside the test's process, and the faults that it may have.

`Cluster` is for asyncio; `BlockingCluster` is the same for plain threads, and what pytest's fixtures are made
of (`tandemmq.pytest_plugin`). `python -m tandemmq.testing` serves tests in other languages.
"""

from tandemmq.testing.blocking import BlockingCluster
from tandemmq.testing.cluster import Cluster, ClusterFailed

__all__ = ["BlockingCluster", "Cluster", "ClusterFailed"]
