"""The broker's metrics over HTTP: what is read at a scrape, and the endpoint that serves it."""

from tandemmq.broker.metrics.endpoint import MetricsEndpoint
from tandemmq.broker.metrics.readings import MetricSources

__all__ = ["MetricSources", "MetricsEndpoint"]
