"""The names of labels that `metricsLabel` may add: those of Prometheus that no metric of a server has."""

from __future__ import annotations

import functools
import re
from typing import Final

from tandemmq.telemetry import controller_metrics, metrics, proxy_metrics, rocketmq_metrics

_NAME: Final = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset({"le", "quantile", "aggregation"})
"""The labels of histograms, of summaries, and of differences (`metricsInDelta`)."""
_TABLES: Final = (
    metrics.TABLE,
    rocketmq_metrics.ROCKETMQ_TABLE,
    controller_metrics.CONTROLLER_TABLE,
    controller_metrics.NAMESERVER_TABLE,
    proxy_metrics.PROXY_TABLE,
)


@functools.cache
def own_labels() -> frozenset[str]:
    """Returns the labels of the metrics of all servers."""
    return _RESERVED.union(*(metric.labels for table in _TABLES for metric in table))


def is_free(name: str) -> bool:
    """Returns True if every series may get a label of this name."""
    return _NAME.fullmatch(name) is not None and name not in own_labels()
