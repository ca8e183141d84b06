"""Rejected requests of clients: the counts of each broker, and those of consumers with the reason."""

from __future__ import annotations

from typing import Final

from tandemmq.console.view import Answer, Page, View
from tandemmq.manage.reach import list_silent
from tandemmq.manage.refusals import read_refusals
from tandemmq.protocol.codes import response_name


async def show_refusals(view: View) -> Answer:
    """Shows what our brokers have rejected since they started."""
    refusals = await read_refusals(view.tools, await view.cluster())
    listing = view.listing(
        refusals.rows,
        search=lambda row: " ".join((row[1].group, row[1].client, row[1].request, row[1].reason)),
        sorts={
            "last": lambda row: row[1].last_at_ms,
            "group": lambda row: row[1].group,
            "client": lambda row: row[1].client,
            "count": lambda row: row[1].count,
        },
        default="-last",
    )
    return view.page(
        "refusals.html",
        counts=refusals.counts,
        listing=listing,
        problems=list_silent(refusals.failed),
        response_name=response_name,
    )


PAGES: Final = (Page("/refusals", "Rejected requests", show_refusals, menu="Clients"),)
