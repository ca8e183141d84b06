"""The kinds of applications behind proxies, by name."""

from __future__ import annotations

from sim.proxied.dead_letters import BuriedOrderWork, BuriedWork
from sim.proxied.push import PushOrderWork, PushWork
from sim.proxied.transactions import PaidWork
from sim.proxied.work import ProxiedOrderWork, ProxiedWork

KINDS: dict[str, type[ProxiedWork]] = {
    kind.kind: kind
    for kind in (
        ProxiedWork,
        ProxiedOrderWork,
        PushWork,
        PushOrderWork,
        PaidWork,
        BuriedWork,
        BuriedOrderWork,
    )
}
