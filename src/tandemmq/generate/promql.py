"""PromQL expressions that the board and the alerts have in common.

A broker's own metrics (`tandemmq_...`) have no labels of the broker. `tandemmq_broker_info` has them, once
per process, and `of_brokers` joins them. RocketMQ's metrics carry `cluster` and `node_id` themselves.
"""

from __future__ import annotations

from typing import Final

MASTERS: Final = 'tandemmq_broker_info{role=~".*MASTER"}'
ALL_BROKERS: Final = "tandemmq_broker_info"


def of_brokers(expression: str, brokers: str = ALL_BROKERS) -> str:
    """Returns the series of these brokers, with the labels `cluster` and `broker`."""
    return f"{expression} * on (job, instance) group_left (cluster, broker) {brokers}"


def quantile(share: float, rates: str, *labels: str) -> str:
    """Returns the quantile of a histogram; `rates` are those of its buckets, `labels` tell series apart."""
    return f"histogram_quantile({share}, sum by ({', '.join((*labels, 'le'))}) ({rates}))"
