"""A broker's part in its group of replicas: copies of the log and the tables, and the state of both."""

from tandemmq.broker.replica.config_sync import ConfigSync, ReplicaTables
from tandemmq.broker.replica.role import ReplicaRole
from tandemmq.broker.replica.tail_check import closed_routes

__all__ = ["ConfigSync", "ReplicaRole", "ReplicaTables", "closed_routes"]
