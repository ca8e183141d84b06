"""The types of times and replica ids, the common type of bytes, limits of numbers and rounding of sizes."""

from typing import Final, NewType, TypeAlias

EpochMs = NewType("EpochMs", int)
"""Wall-clock milliseconds since 1970-01-01 UTC."""

ReplicaId = NewType("ReplicaId", str)
"""The name under which a replica's acknowledgements are counted: one per slave, regardless of the slave's
number of connections.
"""

MASTER_ID: Final = 0
"""The broker id of a master; slaves have ids above it."""

Buffer: TypeAlias = bytes | bytearray | memoryview

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def align_down(value: int, unit: int) -> int:
    """Returns the largest multiple of `unit` that is not above `value`."""
    return value - value % unit


def align_up(value: int, unit: int) -> int:
    """Returns the smallest multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit
