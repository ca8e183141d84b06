"""Replication over real connections and a real store: a thin shell around `replication.core`."""

from tandemmq.replication.shell.autoswitch import AutoSwitchReplication
from tandemmq.replication.shell.master import ReplicationMaster
from tandemmq.replication.shell.master_status import MasterStatus, SlaveStatus
from tandemmq.replication.shell.slave import ReplicationSlave, ReplicationSlaveStatus

__all__ = [
    "AutoSwitchReplication",
    "MasterStatus",
    "ReplicationMaster",
    "ReplicationSlave",
    "ReplicationSlaveStatus",
    "SlaveStatus",
]
