"""Which part of a table a page of GET_ALL_TOPIC_CONFIG or GET_ALL_SUBSCRIPTIONGROUP_CONFIG holds: pure.

Source:  spec replication 6.2, rules for serving Java slaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.data_version import DataVersion, decode_data_version

PAGE_ENTRY_COUNT_MAX = 2_000
"""RocketMQ's splitMetadataSize."""

T = TypeVar("T")


def plan_page(
    total: int, current: DataVersion, *, first: int | None, count_max: int | None, version: str | None
) -> range | None:
    """Positions, in the order of names, of the entries to send; None: the caller knows no pages, send all.

    A caller that holds the current version and asks behind the end gets an empty range. One that sent
    another version, or none, begins at 0 again. A page takes one entry more when that is the last:
    RocketMQ's slaves stop one entry early and would delete it.
    """
    if first is None and count_max is None and version is None:
        return None
    start = max(first or 0, 0) if _is_current(version, current) else 0
    start = min(start, total)
    size = PAGE_ENTRY_COUNT_MAX
    if count_max is not None and count_max > 0:
        size = min(size, count_max)
    end = min(start + size, total)
    if total - end == 1 and end > start:
        end = total
    return range(start, end)


def take_page(entries: Mapping[str, T], page: range) -> dict[str, T]:
    """The entries at those positions in the order of names."""
    return {name: entries[name] for name in islice(sorted(entries), page.start, page.stop)}


def _is_current(version: str | None, current: DataVersion) -> bool:
    if version is None or not version.strip():
        return False
    try:
        return decode_data_version(version) == current
    except RemoteProtocolError:
        return False
