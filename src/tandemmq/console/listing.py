"""Tables that the server searches, sorts and divides into pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

R = TypeVar("R")

ROWS_MAX: Final = 100
"""Rows on one page of a table."""
SEARCH_LENGTH_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """One page of a table, for the macros `search` and `pager` and for headers with `sort_header`."""

    rows: Sequence[R]
    found: int
    total: int
    page: int
    pages: int
    search: str
    sort: str
    is_descending: bool
    sorts: tuple[str, ...]

    def query(self, **changes: object) -> dict[str, object]:
        """Returns the parameters of a link to this table with some changed; defaults are left out."""
        held: dict[str, object] = {
            "q": self.search,
            "sort": f"-{self.sort}" if self.is_descending else self.sort,
            "page": self.page if self.page > 1 else "",
        }
        return {**held, **changes}

    def sort_link(self, name: str) -> str:
        """Returns the sort parameter of a header: the other direction if the table is sorted by it."""
        return f"-{name}" if self.sort == name and not self.is_descending else name


def make_listing(
    items: Iterable[R],
    query: Mapping[str, str],
    *,
    search: Callable[[R], str],
    sorts: Mapping[str, Callable[[R], Any]],
    default: str = "",
) -> Listing[R]:
    """Returns the page that the query asks for: `q` is searched in the text that `search` returns, case does
    not matter; `sort` names one of `sorts`, with `-` for the largest first; `page` counts from 1.

    Unknown or invalid values mean the default: the first of `sorts`, or `default`. A row whose sort key is
    None comes last.
    """
    every = list(items)
    wanted = query.get("q", "")[:SEARCH_LENGTH_MAX].strip()
    lowered = wanted.lower()
    found = [one for one in every if lowered in search(one).lower()] if wanted else every
    default = default or next(iter(sorts))
    asked = query.get("sort", "") or default
    if asked.removeprefix("-") not in sorts:
        asked = default
    name, is_descending = asked.removeprefix("-"), asked.startswith("-")
    key = sorts[name]
    known = [one for one in found if key(one) is not None]
    known.sort(key=key, reverse=is_descending)
    found = known + [one for one in found if key(one) is None]
    pages = max(1, -(-len(found) // ROWS_MAX))
    text = query.get("page", "1")
    page = min(max(int(text) if text.isdecimal() and len(text) < 8 else 1, 1), pages)
    rows = found[(page - 1) * ROWS_MAX : page * ROWS_MAX]
    return Listing(rows, len(found), len(every), page, pages, wanted, name, is_descending, tuple(sorts))
