"""The pages of brokers and replication, and of one broker; their changes."""

from __future__ import annotations

from typing import Final

from tandemmq.api import replica
from tandemmq.console.pages.topics import read_number
from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage import brokers
from tandemmq.manage.settings import is_tandem
from tandemmq.protocol.codes import render_version
from tandemmq.runtime.machine import LoopClock

_EVENTS_SHOWN_MAX: Final = 50


async def show_brokers(view: View) -> Answer:
    """Shows each group of brokers with its replication, and the controllers."""
    cluster = await view.cluster()
    found = await brokers.read_replication(view.tools, cluster)
    events = list(reversed(view.sampler.events))[:_EVENTS_SHOWN_MAX]
    return view.page(
        "brokers.html", groups=found.groups, controllers=found.controllers, events=events, cluster=cluster
    )


async def show_broker(view: View) -> Answer:
    """Shows one broker: its state, store, replication, terms and producers."""
    reading = await view.broker(view.path["address"])
    details = await brokers.read_broker(view.tools, reading)
    facts = view.listing(
        sorted(reading.facts.items()),
        search=lambda one: f"{one[0]} {one[1]}",
        sorts={"name": lambda one: one[0]},
    )
    return view.page(
        "broker.html",
        title=f"Broker {reading.target.broker_name}",
        one=reading,
        details=details,
        facts=facts,
        is_tandem=is_tandem(reading.facts),
        render_version=render_version,
    )


async def _group_of(view: View, name: str) -> brokers.GroupReplication:
    found = await brokers.read_replication(view.tools, await view.cluster())
    for one in found.groups:
        if one.name == name:
            return one
    raise PageError(404, f"no broker with the name {name} is registered")


# Changes


async def ask_handover(view: View) -> Answer:
    """Shows which broker would become master."""
    group = await _group_of(view, view.path["name"])
    if group.sync is None:
        raise PageError(400, f"{group.name} is not an elected group: its master is fixed by its settings")
    candidates = [one for one in group.sync.in_sync if one.is_alive and one.broker_id != group.sync.master_id]
    if not candidates:
        raise PageError(400, f"no other broker of {group.name} is alive and in sync")
    return view.confirm(
        f"Make another broker the master of {group.name}? Sends and reads continue during the change.",
        button="Hand over",
        back="/brokers",
        template="handover.html",
        group=group,
        candidates=candidates,
    )


async def hand_over(view: View) -> Answer:
    """Makes another broker the master."""
    broker_id = read_number(view.form, "to", 0, 2**63 - 1)
    clock = LoopClock()
    done = await brokers.change_master(view.tools, await view.cluster(), view.path["name"], broker_id, clock)
    await view.sampler.read()
    return view.redirect("/brokers", done)


async def ask_permission(view: View) -> Answer:
    """Shows what a change of the write permission does."""
    name, is_writable = view.path["name"], view.query.get("writable") == "true"
    await _group_of(view, name)
    if is_writable:
        question = f"Offer the queues of {name} to producers again?"
    else:
        question = (
            f"Offer the queues of {name} to consumers only? Producers send to the other brokers within 30 s;"
            " a topic that has queues only here accepts no messages then."
        )
    fields = {"writable": "true" if is_writable else "false"}
    button = "Make writable" if is_writable else "Make read-only"
    return view.confirm(question, fields=fields, button=button, back="/brokers")


async def set_permission(view: View) -> Answer:
    """Changes the write permission of a group of brokers in all routes."""
    is_writable = view.form.get("writable") == "true"
    done = await brokers.change_write_permission(view.tools, view.path["name"], is_writable=is_writable)
    return view.redirect("/brokers", done)


async def ask_accept(view: View) -> Answer:
    """Shows what accepting the log of a waiting master loses."""
    one = await view.broker(view.path["address"])
    return view.confirm(
        f"Let {one.target.broker_name} ({one.address}) serve without waiting for its slaves?"
        " Messages that only they hold are lost.",
        button="Accept its log",
        back="/brokers",
    )


async def accept(view: View) -> Answer:
    """Ends the wait of a master."""
    one = await view.broker(view.path["address"])
    return view.redirect("/brokers", await replica.accept_log(view.tools.remoting, one.address))


PAGES: Final = (
    Page("/brokers", "Brokers", show_brokers, menu="Cluster", refresh_s=5),
    Page("/brokers/{address}", "Broker", show_broker, refresh_s=10),
    Action("/brokers/groups/{name}/handover", "Hand over", hand_over, preview=ask_handover),
    Action(
        "/brokers/groups/{name}/permission",
        "Change the write permission",
        set_permission,
        preview=ask_permission,
    ),
    Action("/brokers/{address}/accept", "Accept a master's log", accept, preview=ask_accept),
)
