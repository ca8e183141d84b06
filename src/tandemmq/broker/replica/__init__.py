"""A broker's part in its group of replicas: copy of the log, copy of the tables, state of both."""

from tandemmq.broker.replica.config_sync import ConfigSync, ReplicaTables
from tandemmq.broker.replica.role import ReplicaRole
from tandemmq.broker.replica.tail_check import closed_routes

__all__ = ["ConfigSync", "ReplicaRole", "ReplicaTables", "closed_routes"]
