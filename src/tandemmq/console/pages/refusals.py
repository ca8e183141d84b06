"""Rejected requests of clients: the counts of each broker, and those of consumers with the reason."""

from __future__ import annotations

from typing import Final

from tandemmq.console.view import Answer, Page, View
from tandemmq.manage.refusals import counts_of, read_refusals
from tandemmq.protocol.codes import response_name


async def show_refusals(view: View) -> Answer:
    """Shows what our brokers have rejected since they started."""
    reading = await view.cluster()
    counts = [(one.target, counts_of(one.facts)) for one in reading.answering]
    ours = [target for target, held in counts if held is not None]
    refusals = await read_refusals(view.tools, ours)
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
    problems = [
        f"{one.broker_name} ({one.address}) does not answer: {error}"
        for one, error in refusals.failed.items()
    ]
    return view.page(
        "refusals.html", counts=counts, listing=listing, problems=problems, response_name=response_name
    )


PAGES: Final = (Page("/refusals", "Rejected requests", show_refusals, menu="Clients"),)
