"""The message store: one append-only log, watermarks over it, and tables derived from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemmq import names_on_demand

if TYPE_CHECKING:
    from tandemmq.store.confirm import AckTable
    from tandemmq.store.message_store import MessageStore
    from tandemmq.store.options import BrokerRole, FlushMode, StoreOptions
    from tandemmq.store.outcomes import Appended, GetResult, GetStatus, PutStatus
    from tandemmq.store.reader import GET_BYTES_MAX
    from tandemmq.store.watermarks import Watermark

__all__ = [
    "GET_BYTES_MAX",
    "AckTable",
    "Appended",
    "BrokerRole",
    "FlushMode",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutStatus",
    "StoreOptions",
    "Watermark",
]

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "confirm": ("AckTable",),
        "message_store": ("MessageStore",),
        "options": ("BrokerRole", "FlushMode", "StoreOptions"),
        "outcomes": ("Appended", "GetResult", "GetStatus", "PutStatus"),
        "reader": ("GET_BYTES_MAX",),
        "watermarks": ("Watermark",),
    },
)
