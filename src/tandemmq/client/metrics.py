"""Metrics of an application's clients: what was sent and handled, how often it failed, and how long it took.

    metrics = ClientMetrics()
    producer = Producer("shop", namesrv, options=ProducerOptions(metrics=metrics))
    prometheus_client.REGISTRY.register(metrics)

Several producers and push consumers may share one object. Prometheus reads it as a collector, OpenTelemetry
through `observe`. Both libraries are loaded only when they are used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import WeakSet

from tandemmq.client.hooks import ConsumeEvent, SendEvent
from tandemmq.errors import install_hint

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client.core import Metric

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
TOPICS_MAX: Final = 1_000
OTHER_TOPICS: Final = "other"
"""The topic under which further topics are counted."""


class SendingClient(Protocol):
    """A producer, as far as it is measured."""

    @property
    def in_flight(self) -> int: ...

    @property
    def retried_count(self) -> int: ...


class HandlingClient(Protocol):
    """A push consumer, as far as it is measured."""

    @property
    def unfinished_count(self) -> int: ...


class TopicMetrics:
    """The outcomes and times of one topic."""

    __slots__ = ("buckets", "failed_count", "good_count", "took_s")

    def __init__(self) -> None:
        self.good_count = self.failed_count = 0
        self.took_s = 0.0
        self.buckets = [0] * (len(SECONDS) + 1)
        """The number of outcomes between two of `SECONDS`."""

    def add(self, took_s: float, *, is_good: bool) -> None:
        """Counts one outcome."""
        if is_good:
            self.good_count += 1
        else:
            self.failed_count += 1
        self.took_s += took_s
        self.buckets[bisect_left(SECONDS, took_s)] += 1


TopicTable = dict[str, TopicMetrics]


class Gauge(NamedTuple):
    """A number that is read when a reader asks for it."""

    name: str
    text: str
    read: Callable[[], int]
    is_counter: bool = False


class ClientMetrics:
    """The metrics of the clients that have it in their options."""

    def __init__(self) -> None:
        self.sent: TopicTable = {}
        """The outcomes of sends, by topic."""
        self.handled: TopicTable = {}
        """The outcomes of handlers, by topic; a failed message is retried or becomes a dead letter."""
        self._producers: WeakSet[SendingClient] = WeakSet()
        self._consumers: WeakSet[HandlingClient] = WeakSet()

    # Called by the clients

    def add_producer(self, producer: SendingClient) -> None:
        """Reads the gauges of a producer from now on."""
        self._producers.add(producer)

    def add_consumer(self, consumer: HandlingClient) -> None:
        """Reads the gauges of a push consumer from now on."""
        self._consumers.add(consumer)

    def on_send(self, event: SendEvent) -> None:
        """Counts the outcome of a send."""
        _of(self.sent, event.message.topic).add(event.took_s, is_good=event.error is None)

    def on_consume(self, event: ConsumeEvent) -> None:
        """Counts the outcome of a handler."""
        _of(self.handled, event.message.topic).add(event.took_s, is_good=event.is_success)

    # Called by readers

    @property
    def in_flight(self) -> int:
        """The number of sends without a result yet."""
        return sum(producer.in_flight for producer in list(self._producers))

    @property
    def retried_count(self) -> int:
        """The number of requests that producers sent again, or to another broker."""
        return sum(producer.retried_count for producer in list(self._producers))

    @property
    def unfinished_count(self) -> int:
        """The number of messages that push consumers have received and not acknowledged yet."""
        return sum(consumer.unfinished_count for consumer in list(self._consumers))

    def collect(self) -> Iterator[Metric]:
        """Returns the metrics for prometheus-client, of which this object is a collector.

        Raises:  ImportError when prometheus-client is not installed.
        """
        try:
            from prometheus_client.core import (
                CounterMetricFamily,
                GaugeMetricFamily,
                HistogramMetricFamily,
            )
        except ImportError:
            raise ImportError("the metrics for Prometheus need prometheus-client") from None

        for kind, what, by_topic in self._tables():
            total = CounterMetricFamily(
                f"tandemmq_client_{kind}_messages", f"{what}, by outcome", labels=("topic", "outcome")
            )
            seconds = HistogramMetricFamily(
                f"tandemmq_client_{kind}_seconds", f"Time of {what.lower()}", labels=("topic",)
            )
            for topic, row in list(by_topic.items()):
                total.add_metric((topic, "success"), row.good_count)
                total.add_metric((topic, "failure"), row.failed_count)
                bounds = (*map(str, SECONDS), "+Inf")
                buckets = list(zip(bounds, accumulate(row.buckets), strict=True))
                seconds.add_metric((topic,), buckets, row.took_s)
            yield total
            yield seconds
        for gauge in self._gauges():
            family = CounterMetricFamily if gauge.is_counter else GaugeMetricFamily
            yield family(f"tandemmq_client_{gauge.name}", gauge.text, value=gauge.read())

    def observe(self, meter: Meter) -> None:
        """Adds the metrics to a meter of OpenTelemetry: outcomes, their seconds, and the gauges.

        Raises:  ImportError when OpenTelemetry is not installed.
        """
        try:
            from opentelemetry.metrics import Observation as make_observation
        except ImportError:
            raise ImportError(f"the metrics need OpenTelemetry: {install_hint('otel')}") from None

        def observe_counts(by_topic: TopicTable) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def read(options: CallbackOptions) -> Iterator[Observation]:
                for topic, row in list(by_topic.items()):
                    yield make_observation(row.good_count, {"topic": topic, "outcome": "success"})
                    yield make_observation(row.failed_count, {"topic": topic, "outcome": "failure"})

            return read

        def observe_seconds(by_topic: TopicTable) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda options: (
                make_observation(row.took_s, {"topic": topic}) for topic, row in list(by_topic.items())
            )

        def observe_gauge(gauge: Gauge) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda options: [make_observation(gauge.read())]

        for kind, what, by_topic in self._tables():
            name = f"tandemmq.client.{kind}"
            meter.create_observable_counter(f"{name}.messages", [observe_counts(by_topic)], "{message}", what)
            meter.create_observable_counter(
                f"{name}.time", [observe_seconds(by_topic)], "s", f"Time of {what.lower()}"
            )
        for gauge in self._gauges():
            create: Any = (
                meter.create_observable_counter if gauge.is_counter else meter.create_observable_gauge
            )
            create(f"tandemmq.client.{gauge.name}", [observe_gauge(gauge)], "", gauge.text)

    def _tables(self) -> Iterator[tuple[str, str, TopicTable]]:
        yield "sent", "Sends of messages", self.sent
        yield "handled", "Calls of handlers for messages", self.handled

    def _gauges(self) -> tuple[Gauge, ...]:
        return (
            Gauge("sends_in_flight", "Sends without a result yet", lambda: self.in_flight),
            Gauge(
                "unfinished_messages",
                "Messages that push consumers have received and not acknowledged",
                lambda: self.unfinished_count,
            ),
            Gauge(
                "send_retries",
                "Requests that producers sent again, or to another broker",
                lambda: self.retried_count,
                is_counter=True,
            ),
        )


def _of(by_topic: TopicTable, topic: str) -> TopicMetrics:
    found = by_topic.get(topic)
    if found is None:
        if len(by_topic) >= TOPICS_MAX:
            topic = OTHER_TOPICS
        found = by_topic.setdefault(topic, TopicMetrics())
    return found
