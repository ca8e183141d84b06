"""The bits of a message's sysFlag and of a pull's sysFlag, as plain integers.

Plain ints instead of an IntFlag, since they are tested once per message on hot paths.
Source:  spec remoting 12.3, spec semantics 1.3.
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6_MASK: Final = 0x30
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LEGACY: Final = 0x000
"""The value of old clients, which set COMPRESSED and no kind: it is zlib."""
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10


def is_queued(sys_flag: int) -> bool:
    """Returns True if the record gets a ConsumeQueue entry: no transaction, or a committed one (spec store
    5).
    """
    return sys_flag & TRANSACTION_PREPARED == 0


def without_transaction(sys_flag: int, transaction: int = TRANSACTION_NONE) -> int:
    """Returns the flag with its transaction type replaced."""
    return sys_flag & ~TRANSACTION_MASK | transaction
