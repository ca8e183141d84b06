"""The page of all changes made in this console."""

from __future__ import annotations

from typing import Final

from tandemmq.console.audit import ENTRIES_MAX
from tandemmq.console.view import Answer, Page, View


async def show_audit(view: View) -> Answer:
    """Shows the latest changes, the newest first. Users with keys of their own do not see the values that
    others sent, because brokers might not show them either.
    """
    has_shared_keys = view.frame.sessions.passwords is not None
    listing = view.listing(
        view.audit.entries,
        search=lambda one: f"{one.user} {one.action} {one.path} {one.outcome}",
        sorts={
            "time": lambda one: one.number,
            "user": lambda one: one.user,
            "action": lambda one: one.action,
        },
        default="-time",
    )
    return view.page("audit.html", listing=listing, entries_max=ENTRIES_MAX, has_shared_keys=has_shared_keys)


PAGES: Final = (Page("/audit", "Audit", show_audit, menu="Console"),)
