"""Every page of the console with an address to visit, and the texts that a reader must find there.

`VISITS` has a row for each page that the application serves: a page without a row fails the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from console_load import FAILING, HOSTILE, ORDERS, PAYMENTS, QUICK, SLOW, TRANSACTIONS
from sites import PIPELINE, READER, Site

Address = Callable[[Site], str]


@dataclass(frozen=True)
class Visit:
    """An address of a page; `finds` are texts on it.

    ours_only     Java's brokers lack the page's subject: its page may say so with an error status
    is_download   the browser saves the answer as a file
    status        the status of the answer
    """

    address: Address
    finds: tuple[str, ...] = ()
    ours_only: bool = False
    is_download: bool = False
    status: int = 200


def at(path: str, *finds: str, ours_only: bool = False) -> Visit:
    """Returns a visit of a fixed address."""
    return Visit(lambda _site: path, finds, ours_only)


def part(text: str) -> str:
    """Returns a text as one part of a path."""
    return quote(text, safe="")


def of_broker(site: Site) -> str:
    return f"/brokers/{part(site.master())}"


def of_hostile(site: Site) -> str:
    return f"/messages/{HOSTILE}/{site.load.hostile}"


LETTER = f"/dead-letters/{FAILING}/letter/broker-a/0/0"

VISITS: dict[str, Visit] = {
    "/login": at("/login"),
    "/": at("/", "broker-a", "Messages per second"),
    "/brokers": at("/brokers", "broker-a"),
    "/brokers/{address}": Visit(of_broker, ("broker-a",)),
    "/topics": at("/topics", ORDERS, PAYMENTS, HOSTILE),
    "/new-topic": at("/new-topic"),
    "/topics/{topic}": at(f"/topics/{ORDERS}", QUICK, SLOW),
    "/topics/{topic}/settings": at(f"/topics/{ORDERS}/settings", ORDERS),
    "/groups": at("/groups", QUICK, SLOW, FAILING),
    "/new-group": at("/new-group"),
    "/groups/{group}": at(f"/groups/{SLOW}", ORDERS),
    "/groups/{group}/settings": at(f"/groups/{SLOW}/settings", SLOW),
    "/groups/{group}/offsets": at(f"/groups/{SLOW}/offsets", SLOW),
    "/messages": at(f"/messages?topic={HOSTILE}", "<script>window.hacked=1</script>"),
    "/messages/{topic}/{broker}/{queue}/{offset}": Visit(of_hostile, ("window.hacked=1",)),
    "/messages/{topic}/{broker}/{queue}/{offset}/body": Visit(
        lambda site: f"{of_hostile(site)}/body", ("window.hacked=1",), is_download=True
    ),
    "/traces": Visit(lambda site: f"/traces?key={site.load.traced_key}", (QUICK,)),
    "/dead-letters": at("/dead-letters", FAILING),
    "/dead-letters/{group}": at(f"/dead-letters/{FAILING}", "payment-0"),
    "/dead-letters/{group}/export": Visit(
        lambda _site: f"/dead-letters/{FAILING}/export", ("payment-0",), is_download=True
    ),
    "/dead-letters/{group}/letter/{broker}/{queue}/{offset}": at(LETTER, FAILING),
    "/delayed": at("/delayed"),
    "/transactions": at("/transactions", TRANSACTIONS),
    "/access": at("/access", READER[0], ours_only=True),
    "/access/check": at(f"/access/check?kind=Topic&name={ORDERS}", READER[0], ours_only=True),
    "/access/users/{user}": at(f"/access/users/{READER[0]}", READER[0], ours_only=True),
    "/new-user": at("/new-user", ours_only=True),
    "/new-account": at("/new-account", ours_only=True),
    "/settings": at("/settings", "broker-a"),
    "/audit": at("/audit"),
    "/refusals": at("/refusals", ours_only=True),
    "/pipelines": at("/pipelines", PIPELINE, "running"),
    "/services": at("/services", ORDERS, "running"),
    "/pipelines/{pipeline}": at(f"/pipelines/{PIPELINE}", ORDERS, "/data/orders"),
}
