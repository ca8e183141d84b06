"""The facts about this machine, on which the defaults of some settings depend; used by commands and `up`."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tandemmq.config.load import MachineFacts
from tandemmq.runtime.machine import local_address, resolve_host


def this_machine() -> MachineFacts:
    """Returns the facts about the machine of this process."""
    return MachineFacts(
        host_name=socket.gethostname(),
        address=local_address(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        home=Path.home(),
        rocketmq_home=Path(os.environ.get("ROCKETMQ_HOME") or "."),
        name_servers=os.environ.get("NAMESRV_ADDR", ""),
        resolve=resolve_host,
    )
