"""The counts of one proxy that are kept while it works: calls (`CallMeter`), and messages and refusals
(`Traffic`). `proxy.metrics` reads them at a scrape.

Invariants: the number of keys is bounded, whatever clients send: rpcs, codes and limits are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tandemmq.protocol.record import Record
from tandemmq.proxy.rpc import GrpcStatus, Method
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.telemetry.metrics import Histogram
from tandemmq.telemetry.proxy_metrics import CALL_BUCKETS_S, POLL_BUCKETS_S

_LABELS: Final[dict[int, str]] = {int(code): code.name for code in (*GrpcStatus, *Code)} | {0: Code.OK.name}
"""The label of an ending; 0 is a call without a code in its answer."""


class MethodMeter:
    """The endings of the calls of one rpc. `seconds` is None for streams that last as long as a client."""

    __slots__ = ("endings", "name", "seconds")

    def __init__(self, method: Method) -> None:
        self.name = method.path.rpartition("/")[2]
        self.endings: dict[int, int] = {}
        self.seconds: Histogram | None = None
        if method.is_poll:
            self.seconds = Histogram(POLL_BUCKETS_S)
        elif not method.is_held:
            self.seconds = Histogram(CALL_BUCKETS_S)

    @property
    def is_poll(self) -> bool:
        return self.seconds is not None and self.seconds.bounds is POLL_BUCKETS_S


class CallMeter:
    """The endings of all calls, by rpc."""

    __slots__ = ("_by_name", "_by_path")

    def __init__(self, methods: Iterable[Method]) -> None:
        self._by_path: dict[str, MethodMeter] = {}
        self._by_name: dict[str, MethodMeter] = {}
        for method in methods:
            meter = MethodMeter(method)
            # The versions of server reflection share a name.
            self._by_path[method.path] = self._by_name.setdefault(meter.name, meter)

    def __iter__(self) -> Iterator[MethodMeter]:
        return iter(self._by_name.values())

    def end(self, path: str, ending: int, seconds: float) -> None:
        """Counts the end of a call: `ending` is the code of its answer, or the gRPC status of a call that
        failed.
        """
        meter = self._by_path[path]
        endings = meter.endings
        endings[ending] = endings.get(ending, 0) + 1
        if meter.seconds is not None:
            meter.seconds.observe(seconds)


def ending_label(ending: int) -> str:
    """Returns the name of an ending of a call."""
    return _LABELS.get(ending, str(ending))


class Limit(Enum):
    """A bound of the proxy at which requests are refused."""

    CONNECTIONS = "connections"
    CALLS = "calls"
    STREAMS = "streams"
    REQUEST_BYTES = "request_bytes"
    SEND_BYTES = "send_bytes"
    RECEIVES = "receives"
    ANSWER_BYTES = "answer_bytes"
    PULLS = "pulls"
    CLIENTS = "clients"
    RENEWALS = "renewals"
    USERS = "users"


@dataclass(slots=True)
class Traffic:
    """The messages that passed, and the requests that were refused because of a limit."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    refusals: Counter[Limit] = field(default_factory=Counter)

    def refusal(self, limit: Limit, text: str) -> RpcRefused:
        """Returns the error that answers a refusal because of a limit, and counts it."""
        self.refusals[limit] += 1
        return RpcRefused(Code.TOO_MANY_REQUESTS, text)

    def count_out(self, records: Iterable[Record]) -> None:
        """Counts delivered messages."""
        for record in records:
            self.messages_out += 1
            self.bytes_out += len(record.body)
