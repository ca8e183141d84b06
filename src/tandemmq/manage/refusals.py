"""The requests of clients that brokers have rejected since they started. Only our brokers report them; used
by pages.

A rejected client is often silent, while the cluster looks healthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.api import broker_admin
from tandemmq.manage.cluster import ClusterReading, count_of
from tandemmq.manage.reach import answers_of, ask_each, errors_of
from tandemmq.manage.tools import Target, Tools
from tandemmq.protocol.bodies import codec
from tandemmq.protocol.bodies.client import Refusal


@dataclass(frozen=True, slots=True)
class RefusalCounts:
    """The counts of one broker since its start. `sends` lists rejected sends by response code; `store` is the
    reason why the store accepts no messages, empty while it does.
    """

    consumers: int
    denials: int
    newest_denial: str
    connections: int
    sends: str
    store: str

    @property
    def is_quiet(self) -> bool:
        """True if the broker has rejected nothing."""
        return not (self.consumers or self.denials or self.connections or self.sends or self.store)


@dataclass(frozen=True, slots=True)
class ClusterRefusals:
    """The counts of each broker that answered, None where it does not report them; and the rejected requests
    of consumers that brokers remember, the newest first, each with its broker.
    """

    counts: list[tuple[Target, RefusalCounts | None]]
    rows: list[tuple[Target, Refusal]]
    failed: dict[Target, str]


def counts_of(facts: Mapping[str, str]) -> RefusalCounts | None:
    """Returns the counts in a broker's runtime information; None for a broker that does not report them."""
    if codec.REFUSALS_KEY not in facts:
        return None

    def count(key: str) -> int:
        return count_of(facts.get(key)) or 0

    return RefusalCounts(
        consumers=count(codec.REFUSALS_KEY),
        denials=count(codec.DENIALS_KEY),
        newest_denial=facts.get(codec.NEWEST_DENIAL_KEY, ""),
        connections=count(codec.REFUSED_CONNECTIONS_KEY),
        sends=facts.get(codec.SEND_REFUSALS_KEY, ""),
        store=facts.get(codec.STORE_REFUSAL_KEY, ""),
    )


async def read_refusals(tools: Tools, reading: ClusterReading) -> ClusterRefusals:
    """Returns the rejected requests at the brokers that answered; none of a broker of RocketMQ."""
    counts = [(one.target, counts_of(one.facts)) for one in reading.answering]

    async def read(target: Target) -> tuple[Refusal, ...]:
        found = await broker_admin.query_consumer_connections(tools.remoting, target.address, "")
        return () if found is None else found.refusals or ()

    reached = await ask_each([target for target, held in counts if held is not None], read)
    rows = [(target, one) for target, refusals in answers_of(reached) for one in refusals]
    rows.sort(key=lambda row: row[1].last_at_ms, reverse=True)
    return ClusterRefusals(counts, rows, errors_of(reached))
