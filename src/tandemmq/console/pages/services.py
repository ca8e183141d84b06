"""Services that land many topics (`tandemmq pipeline serve`): their topics, from the directories that
--served names; pausing and resuming a topic, landing it anew, and withdrawing that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.errors import ConfigError
from tandemmq.manage.settings import read_settings_of
from tandemmq.runtime.disk import RealDisk
from tandemmq.spark.pipelines.served import LandedTopic, ServiceStatus, order, read_status

HOME: Final = "/services"
IN_TURN: Final = "as soon as the service gives it a turn"


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A topic of a service; `out` is the service's directory."""

    out: Path
    status: LandedTopic


async def show_services(view: View) -> Answer:
    """Shows the topics of all services, or how to make them visible."""
    services = {out: await _read(out) for out in view.frame.served}
    listing = view.listing(
        [
            ServiceRow(out, one)
            for out, status in services.items()
            if isinstance(status, ServiceStatus)
            for one in status.topics
        ],
        search=lambda one: f"{one.status.name} {one.out} {one.status.state} {one.status.error}",
        sorts={
            "topic": lambda one: one.status.name,
            "state": lambda one: one.status.state,
            "rows": lambda one: one.status.rows,
            "lag": lambda one: one.status.lag,
            "p99": lambda one: one.status.p99_s or 0.0,
        },
    )
    return view.page("services.html", listing=listing, services=services)


async def ask_redo(view: View) -> Answer:
    """Shows what it means to land a topic anew."""
    out, topic = await _find(view, view.query.get("out", ""), view.query.get("topic", ""))
    return view.confirm(
        f"Land {topic} anew? The service moves its lake from {out / topic} to _tandemmq/replaced in {out},"
        " and begins a new one at the start of the topic. Messages that the brokers have deleted since are in"
        " the old lake only. If the table has its files elsewhere, the topic fails until you remove it.",
        fields={"out": str(out), "topic": topic},
        button="Land anew",
        back=HOME,
    )


async def _order(view: View, what: str, notice: str) -> Answer:
    out, topic = await _find(view, view.form.get("out", ""), view.form.get("topic", ""))
    masters = (await view.cluster()).masters
    if not masters:
        raise PageError(409, "no master answers, so the right to control pipelines cannot be checked")
    # No broker checks the rights on these files: the user must be one who may see the brokers' settings.
    await read_settings_of(view.tools, masters[0].address)
    await RealDisk().offload(partial(order, out, topic, what))
    return view.redirect(HOME, f"{topic} {notice}")


async def _find(view: View, out: str, topic: str) -> tuple[Path, str]:
    """Returns a served topic. Raises PageError for any other directory or topic, whatever a form says."""
    found = next((one for one in view.frame.served if str(one) == out), None)
    status = None if found is None else await _read(found)
    topics = status.topics if isinstance(status, ServiceStatus) else ()
    if found is None or topic not in {one.name for one in topics}:
        raise PageError(404, f"there is no service in {out[:200]!r} with the topic {topic[:200]!r}")
    return found, topic


async def _read(out: Path) -> ServiceStatus | str:
    """Returns the status of a service, or why there is none."""
    try:
        return await RealDisk().offload(partial(read_status, out)) or f"{out}: no service has run here"
    except ConfigError as error:
        return str(error)


_ORDERS: Final = (
    ("pause", "Pause a topic's pipeline", f"is paused, {IN_TURN}", None),
    ("resume", "Resume a topic's pipeline", f"continues, {IN_TURN}", None),
    ("redo", "Land a topic anew", f"is landed anew, {IN_TURN}", ask_redo),
    ("cancel-redo", "Keep a topic's lake", "keeps its lake", None),
)
"""The orders to a service: its name, the title of the action, the notice, and the preview."""

PAGES: Final = (
    Page(HOME, "Pipeline services", show_services, menu="Clients", refresh_s=5),
    *(
        Action(f"{HOME}/{what}", title, partial(_order, what=what, notice=notice), preview=preview)
        for what, title, notice, preview in _ORDERS
    ),
)
