"""In-memory twins of the real doors, for unit tests and, later, for simulated clusters."""

from tandemmq.runtime.chance import SeededRandom
from tandemmq.runtime.manual_clock import ManualClock
from tandemmq.runtime.memory_disk import DiskFault, MemoryDisk, MemoryFile, NoFault
from tandemmq.runtime.memory_network import MemoryNetwork

__all__ = ["DiskFault", "ManualClock", "MemoryDisk", "MemoryFile", "MemoryNetwork", "NoFault", "SeededRandom"]
