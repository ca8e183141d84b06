"""Transactions: open half messages and those that were given up; checking again."""

from __future__ import annotations

from typing import Final

from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage.transactions import DISCARDED_MAX, check_again, read_all_transactions

PAGE_TIMEOUT_S: Final = 15.0


async def show_transactions(view: View) -> Answer:
    """Shows the open and the discarded transactions of all masters."""
    found = await read_all_transactions(view.tools, (await view.cluster()).masters)
    listing = view.listing(
        found.opened,
        search=lambda one: f"{one.topic} {one.producer_group} {one.unique_key} {one.keys} {one.broker_name}",
        sorts={
            "born": lambda one: one.born_at_ms,
            "topic": lambda one: one.topic,
            "group": lambda one: one.producer_group,
            "checks": lambda one: one.checks,
        },
    )
    return view.page(
        "transactions.html",
        listing=listing,
        discarded=found.discarded[:DISCARDED_MAX],
        discarded_max=DISCARDED_MAX,
        is_cut=found.is_cut,
        errors=sorted((target.broker_name, error) for target, error in found.failed.items()),
    )


async def ask_check(view: View) -> Answer:
    """Shows what a new check does."""
    fields = {name: view.query.get(name, "") for name in ("broker", "id", "topic", "key")}
    return view.confirm(
        f"Ask the producer of {fields['key'] or fields['id']} again for its outcome?",
        fields=fields,
        button="Check again",
        back="/transactions",
        template="transaction_check.html",
    )


async def check(view: View) -> Answer:
    """Restarts the checks of a half message."""
    form = view.form
    # Only a master of this cluster is asked, whatever the form says.
    targets = (await view.cluster()).masters
    address = next((one.address for one in targets if one.broker_name == form.get("broker")), None)
    if address is None:
        raise PageError(404, f"no master of broker {form.get('broker', '')[:100]!r} answers")
    await check_again(view.tools, address, form.get("id", ""), form.get("topic", ""))
    return view.redirect("/transactions", "the broker asks the producer again in its next round")


PAGES: Final = (
    Page("/transactions", "Transactions", show_transactions, menu="Data", timeout_s=PAGE_TIMEOUT_S),
    Action("/transactions/check", "Check a transaction again", check, preview=ask_check),
)
