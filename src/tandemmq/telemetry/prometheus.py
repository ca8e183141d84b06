"""Renders samples in Prometheus' text format.

`SeriesText` takes a few samples at a time, so that a scrape of thousands of series can be spread over turns
of the loop. The text of a `SampleColumn`, and of the labels in it, is made once: a reader yields the same
column again while nothing in it has changed. The process's statistics come from the prometheus-client
library.
Knows not: the meaning of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tandemmq.telemetry.metrics import Histogram, Metric, MetricKind, Sample, SampleColumn

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
NAMESPACE: Final = "tandemmq"

ReadAll = Callable[[], Iterable[Sample]]


class TextExporter:
    """Renders the samples that `read_all` returns, and the statistics of the process."""

    def __init__(self, read_all: ReadAll) -> None:
        self._read_all = read_all
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(namespace=NAMESPACE, registry=self._process)

    def render(self) -> bytes:
        """Returns the whole text. Raises the errors of `read_all`."""
        series = SeriesText()
        series.add(self._read_all())
        return series.render() + generate_latest(self._process)


class SeriesText:
    """The text of samples that arrive piece by piece; those of a piece mostly have the same labels."""

    def __init__(self) -> None:
        self._families: dict[Metric, list[bytes]] = {}
        self._labels: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._label_text = ""

    def add(self, samples: Iterable[Sample]) -> None:
        if isinstance(samples, SampleColumn):
            if samples.text is None:
                samples.text = _column_text(samples).encode()
            self._lines(samples.metric).append(samples.text)
            return
        for metric, value, labels in samples:
            if self._labels[0] is not metric.labels or self._labels[1] is not labels:
                self._labels = metric.labels, labels
                self._label_text = _label_text(metric.labels, labels)
            text = self._label_text
            lines = self._lines(metric)
            if isinstance(value, Histogram):
                lines.append(_histogram_text(metric.name, text, value).encode())
            else:
                lines.append(f"{metric.name}{_braced(text)} {float(value)!r}\n".encode())

    def _lines(self, metric: Metric) -> list[bytes]:
        lines = self._families.get(metric)
        if lines is None:
            head = f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} {metric.kind.value}\n"
            lines = self._families[metric] = [head.encode()]
        return lines

    def render(self) -> bytes:
        """Returns the text of every family."""
        return b"".join([line for lines in self._families.values() for line in lines])


def _column_text(column: SampleColumn) -> str:
    metric, name = column.metric, column.metric.name
    texts = []
    for labels in column.labels:
        if labels.text is None:
            labels.text = _label_text(metric.labels, labels)
        texts.append(labels.text)
    rows = zip(texts, column.values, strict=True)
    if metric.kind is MetricKind.HISTOGRAM:
        return "".join([_histogram_text(name, text, value) for text, value in rows])  # type: ignore[arg-type]
    return "".join([f"{name}{{{text}}} {float(value)!r}\n" for text, value in rows])  # type: ignore[arg-type]


def _label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join([f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)])


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _histogram_text(name: str, labels: str, histogram: Histogram) -> str:
    begin = f"{name}_bucket{{{labels}{',' if labels else ''}le="
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    buckets = [
        f'{begin}"{bound}"}} {float(count)!r}\n'
        for bound, count in zip(bounds, histogram.cumulative(), strict=True)
    ]
    count, total, of_all = float(histogram.count), float(histogram.total), _braced(labels)
    return f"{''.join(buckets)}{name}_count{of_all} {count!r}\n{name}_sum{of_all} {total!r}\n"
