"""The brokers at which a change is made; used by commands, pages and the tools of assistants.

A change of topics or groups at many brokers begins only when all of them answer: a broker that is left out
would bring the old state back. `client.changes` makes the change and names the brokers where it failed.
"""

from __future__ import annotations

from tandemmq.api import broker_admin
from tandemmq.errors import BrokersAway, RequestRejected
from tandemmq.manage.reach import ask_each
from tandemmq.manage.tools import (
    CALL_TIMEOUT_S,
    EVERYWHERE,
    Place,
    Target,
    Tools,
    find_targets,
    without_master,
)
from tandemmq.units import MASTER_ID


async def answering_masters(tools: Tools, place: Place = EVERYWHERE) -> list[Target]:
    """Returns the masters of a place, or the broker that the place names.

    Raises:  BrokersAway when a master does not answer, or a replica set has none now; ConfigError as
             `find_targets` does.
    """
    targets = await find_targets(tools, place)
    if place.address:
        return targets
    masters = [target for target in targets if target.broker_id == MASTER_ID]
    away = [f"{name} has no master now" for name in without_master(targets)]

    async def answers(target: Target) -> None:
        try:
            await broker_admin.query_runtime_info(tools.remoting, target.address)
        except RequestRejected:
            pass  # a refusal is an answer: other requests may be allowed

    away += [
        f"{one.target} does not answer: {one.error}"
        for one in await ask_each(masters, answers, timeout_s=CALL_TIMEOUT_S)
        if one.error
    ]
    if away:
        raise BrokersAway(f"nothing is changed: {'; '.join(away)}")
    return masters
