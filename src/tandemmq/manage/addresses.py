"""The addresses that name servers announce to this machine, and the brokers that answer there.

Each name server is asked as any client asks, so the answer is that of this machine's network (spec addresses
5). Every announced address is then dialled, and the broker that answers is asked for its name and id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.api import broker_admin, nameserver
from tandemmq.errors import NotPermitted
from tandemmq.manage.reach import ask_each
from tandemmq.manage.tools import Target, Tools, targets_of

DIAL_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Announced:
    """One announced address. `network` is this machine's at that name server; `is_mapped` is False for a
    registered address that is answered for lack of another.

    found   (name, id) of the broker that answers; None without an answer, ("", "") if it does not permit the
            question
    error   the reason why none answers
    """

    target: Target
    network: str
    is_mapped: bool
    found: tuple[str, str] | None
    error: str = ""

    @property
    def label(self) -> str:
        return f"{self.target.broker_name}:{self.target.broker_id}"


@dataclass(frozen=True, slots=True)
class Announcements:
    """All that one name server announces here. `error` is the reason if it does not answer."""

    name_server: str
    network: str
    addresses: tuple[Announced, ...]
    error: str = ""

    @property
    def view(self) -> frozenset[tuple[str, int | None, str]]:
        return frozenset(
            (one.target.broker_name, one.target.broker_id, one.target.address) for one in self.addresses
        )


async def read_announced(tools: Tools, servers: Sequence[str]) -> list[Announcements]:
    """Asks the name servers, and dials every address that they announce."""
    answers = await ask_each(
        servers,
        lambda address: nameserver.query_network_view(tools.remoting, address),
        timeout_s=DIAL_TIMEOUT_S,
    )
    targets = {
        target for one in answers if one.answer is not None for target in targets_of(one.answer.cluster)
    }
    found = {
        one.target: one
        for one in await ask_each(targets, lambda target: _identify(tools, target), timeout_s=DIAL_TIMEOUT_S)
    }
    result = []
    for one in answers:
        if one.answer is None:
            result.append(Announcements(one.target, "", (), one.error))
            continue
        unmapped = set(one.answer.unmapped)
        addresses = tuple(
            Announced(
                target,
                one.answer.network,
                f"{target.broker_name}:{target.broker_id}" not in unmapped,
                found[target].answer,
                found[target].error,
            )
            for target in targets_of(one.answer.cluster)
        )
        result.append(Announcements(one.target, one.answer.network, addresses))
    return result


async def _identify(tools: Tools, target: Target) -> tuple[str, str]:
    try:
        settings = await broker_admin.query_broker_config(tools.remoting, target.address)
    except NotPermitted:
        return ("", "")
    return settings.get("brokerName", ""), settings.get("brokerId", "")
