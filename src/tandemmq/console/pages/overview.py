"""The overview: health, rates of the last hour, and changes of roles."""

from __future__ import annotations

from typing import Final

from tandemmq.console.render import ChartLine, draw_lines
from tandemmq.console.view import Answer, Page, View
from tandemmq.manage.tools import without_master


async def show_overview(view: View) -> Answer:
    """Shows the state of the cluster from the latest readings."""
    reading = await view.cluster()
    sampler = view.sampler
    problems = [f"the cluster cannot be read now: {sampler.error}"] if sampler.error else []
    problems += [
        f"{one.target.broker_name} ({one.address}) {'refuses' if one.is_denied else 'does not answer'}:"
        f" {one.error}"
        for one in reading.brokers
        if one.error
    ]
    unled = without_master(one.target for one in reading.brokers)
    problems += [f"{name} has no master: it accepts no messages" for name in unled]
    rates = draw_lines(
        "Messages per second",
        [
            ChartLine("stored", [(one.at_ms, one.in_rate) for one in sampler.samples]),
            ChartLine("delivered", [(one.at_ms, one.out_rate) for one in sampler.samples]),
        ],
        unit="/s",
    )
    lags = draw_lines(
        "Unread messages of all groups",
        [ChartLine("lag", [(one.at_ms, one.lag) for one in sampler.samples if one.lag is not None])],
    )
    events = list(reversed(sampler.events))[:20]
    return view.page(
        "overview.html",
        reading=reading,
        problems=problems,
        rates=rates,
        lag=sampler.lag,
        lags=lags,
        events=events,
    )


PAGES: Final = (Page("/", "Overview", show_overview, menu="Cluster", refresh_s=5),)
