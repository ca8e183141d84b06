"""Renders the readings as medians, spreads and ratios: as a page, as JSON and as a plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.java.clusters import JAVA, KERNEL, OURS
from bench.java.measure import Case, CaseFigures
from bench.others import PAGE, Others, render_others

BROKERS: Final = ("master", "slave")
ONCE: Final = ("start", "failover")
"""The cases that happen once per cluster: their figure is a time."""
AHEAD, EVEN, BEHIND = "#2b8a3e", "#868e96", "#c92a2a"
"""The colours of a bar: ours is better, about equal, worse."""
EVEN_WITHIN: Final = 1.05
"""The ratio up to which two sides are about equal."""
TICKS: Final = (0.125, 0.25, 0.5, 1, 2, 4, 8)
_INTRODUCTION: Final = """# Benchmarks

TandemMQ beside Java RocketMQ {version}: the same loads on the same machine. `make bench` measures all
cases and writes this page. `make bench ROUNDS=1 CASES="64 in flight"` measures only the cases whose name
contains this text, and prints them. Both commands need a JDK and Maven, up to 40 GB of disk, and an
otherwise idle machine.

After the RocketMQ cases, `make bench` compares with Apache Kafka and with NATS JetStream
(`apt-get install nats-server`); a missing program is skipped. The page also has two measurements that are
made once: the catch-up of an empty slave, and the opening of a store after a kill. The Python client has
[a page of its own](client/speed.md).

How it is measured:

- All clusters run at the same time. Settings for flush, replication and log files are equal;
  all other settings are the defaults of each side. Java's servers have a heap of 1 GiB and use G1.
- While one cluster is measured, the processes of the others are stopped (`SIGSTOP`), because Java's servers
  work and compile even without a load. Elected brokers are not stopped: the pause would look like a failure.
- The load is a program around RocketMQ's Java client. The exception is the light generator, which replays
  prepared frames over one connection and needs almost no processor time. Client and servers share the
  processors.
- Each case is measured on TandemMQ and on Java before the next case begins. The order alternates from
  round to round. Java is warmed up for 20 s first, and each load warms up its own client for 2 s before
  it counts.
- A backlog is 5 s of batches of 16. The clusters receive nothing else meanwhile, so both brokers read the
  backlog from the page cache.
- Processor time is the master's, plus the slave's if there is one, per message.
- Sends at a fixed rate are timed from the moment at which they were due, so a stall counts against every
  send that it delayed.
{kernel}
[Performance](performance.md) summarizes the figures, [costs](costs.md) breaks down a broker's processor time.
"""


_KERNEL_LINES: Final = """\
- "With speedups" is the same ratio for a third cluster, ours with the optional `tandemmq-speedups`; in the
  plot a diamond.
"""


def introduction(version: str, *, has_kernel: bool) -> str:
    """Returns the beginning of the page. `version`: that of Java's servers and client."""
    return _INTRODUCTION.format(version=version, kernel=_KERNEL_LINES if has_kernel else "")


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity of one case over all rounds: the median of each side, and the spread of the rounds."""

    ours: float
    java: float
    ratio: float
    """The median of the ratios ours : Java, one per pair."""
    ratio_min: float
    ratio_max: float


def figure_of(pairs: Sequence[tuple[float, float]]) -> Figure:
    """Returns the ratios of (ours, Java's), pair by pair; a ratio is 0 if Java's figure is 0."""
    ratios = [ours / java if java else 0.0 for ours, java in pairs]
    ours, java = (median(side) for side in zip(*pairs, strict=True))
    return Figure(ours, java, median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True, slots=True)
class CaseRow:
    """The summary of one case. `processor_us`: of all brokers together, per message."""

    case: Case
    per_second: Figure
    processor_us: Figure
    p50_us: Figure
    p99_us: Figure
    p999_us: Figure
    failed: Figure
    kernel_per_second: Figure | None
    kernel_processor_us: Figure | None
    """With the kernel in place of ours without it; None for a case that was not measured with it."""


def rows_of(readings: Sequence[CaseFigures]) -> list[CaseRow]:
    """Returns the cases in the order of their first measurement."""
    rows = []
    for case in dict.fromkeys(reading.case for reading in readings):
        ours, kernel, java = (
            [reading for reading in readings if reading.case == case and reading.side == side]
            for side in (OURS, KERNEL, JAVA)
        )
        pairs = list(zip(ours, java, strict=True))
        kernel_pairs = list(zip(kernel, java, strict=bool(kernel)))

        def figure(name: str, pairs: Sequence[tuple[CaseFigures, CaseFigures]] = pairs) -> Figure:
            return figure_of([(getattr(a, name), getattr(b, name)) for a, b in pairs])

        rows.append(
            CaseRow(
                case=case,
                per_second=figure("per_second"),
                processor_us=_processor_figure(pairs),
                p50_us=figure("p50_us"),
                p99_us=figure("p99_us"),
                p999_us=figure("p999_us"),
                failed=figure("failed"),
                kernel_per_second=figure("per_second", kernel_pairs) if kernel_pairs else None,
                kernel_processor_us=_processor_figure(kernel_pairs) if kernel_pairs else None,
            )
        )
    return rows


def _processor_figure(pairs: Sequence[tuple[CaseFigures, CaseFigures]]) -> Figure:
    return figure_of([(_broker_readings(a), _broker_readings(b)) for a, b in pairs])


def _broker_readings(reading: CaseFigures) -> float:
    return sum(reading.processor_us.get(name, 0.0) for name in BROKERS)


def render_page(readings: Sequence[CaseFigures], machine: Sequence[str]) -> str:
    """Returns tables in Markdown: throughput and processor time, latencies, memory."""
    rows = rows_of(readings)
    rounds = sum(reading.side == OURS for reading in readings) // len(rows)
    has_kernel = any(row.kernel_per_second for row in rows)
    spread = f"Medians of {rounds} rounds; in brackets the smallest and the largest ratio."
    lines = [
        *machine,
        spread,
        "A ratio is the median of the rounds' ratios, not the quotient of the two medians.",
    ]
    setting = None
    for row in (row for row in rows if row.case.kind not in ONCE):
        if row.case.setting != setting:
            setting = row.case.setting
            lines += ["", f"### {setting.name}", ""]
            lines += header("messages/s", "processor us per message", has_kernel=has_kernel)
        parts = [row.case.name, cells(row.per_second, 0), cells(row.processor_us, 1)]
        if has_kernel:
            parts.insert(2, _kernel_cell(row.kernel_per_second))
            parts.append(_kernel_cell(row.kernel_processor_us))
        lines.append(f"| {' | '.join(parts)} |")
    lines += ["", "### Latency", "", *_latency_header()]
    lines += [line for row in rows for line in _latency_lines(row)]
    once = [row for row in rows if row.case.kind in ONCE]
    if once:
        lines += ["", "### Start and failover", "", *header("seconds", "processor seconds")]
    for row in once:
        elapsed, spent = _in_seconds(row.p50_us), _in_seconds(row.processor_us)
        lines.append(f"| {row.case.name} | {cells(elapsed, 2)} | {cells(spent, 2)} |")
    lines += ["", "### Memory", "", *_memory_lines(readings)]
    return "\n".join(lines) + "\n"


def _in_seconds(us: Figure) -> Figure:
    return replace(us, ours=us.ours / 1e6, java=us.java / 1e6)


def header(*quantities: str, has_kernel: bool = False) -> list[str]:
    more = " | with speedups" if has_kernel else ""
    titles = [f"{what}: ours | Java | ratio{more}" for what in quantities]
    return [f"| case | {' | '.join(titles)} |", "|---|" + "--:|" * (3 + has_kernel) * len(quantities)]


def _kernel_cell(figure: Figure | None) -> str:
    return "-" if figure is None else f"**{figure.ratio:.2f}**"


def cells(figure: Figure, digits: int) -> str:
    spread = f"{figure.ratio_min:.2f} to {figure.ratio_max:.2f}"
    return f"{figure.ours:,.{digits}f} | {figure.java:,.{digits}f} | **{figure.ratio:.2f}** ({spread})"


def _latency_header() -> list[str]:
    return ["| case | ms | ours | Java | ratio |", "|---|---|--:|--:|--:|"]


def _latency_lines(row: CaseRow) -> Iterator[str]:
    if not row.p50_us.java or row.case.kind in ("read", "filter", "sql", *ONCE):
        return
    name = f"{row.case.name}, {row.case.setting.name}"
    for what, figure in (("p50", row.p50_us), ("p99", row.p99_us), ("p99.9", row.p999_us)):
        ours, java = figure.ours / 1000, figure.java / 1000
        yield f"| {name} | {what} | {ours:,.2f} | {java:,.2f} | {figure.ratio:.2f} |"
        name = ""
    if row.failed.ours or row.failed.java:
        yield f"| | sends that failed | {row.failed.ours:,.0f} | {row.failed.java:,.0f} | |"


def _memory_lines(readings: Sequence[CaseFigures]) -> Iterator[str]:
    """Returns the maximum that each process had after a case."""
    yield "| process | private MiB: ours | Java | ratio | resident MiB: ours | Java |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name in dict.fromkeys(name for reading in readings for name in reading.private_bytes):
        most = [
            max(getattr(reading, kind).get(name, 0) / 2**20 for reading in readings if reading.side == side)
            for kind in ("private_bytes", "resident_bytes")
            for side in (OURS, JAVA)
        ]
        yield (
            f"| {name} | {most[0]:,.0f} | {most[1]:,.0f} | {most[0] / most[1]:.2f} |"
            f" {most[2]:,.0f} | {most[3]:,.0f} |"
        )


def write_report(
    readings: Sequence[CaseFigures],
    machine: Sequence[str],
    folder: Path,
    others: Others | None = None,
    around: Sequence[str] = (),
    *,
    version: str,
) -> None:
    """Writes three files to the folder: the page with its explanation, all readings, and the plot. `others`
    has a separate section, and no part in the plot; `around`: the lines of one more section; `version`:
    Java's.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    draw(readings, folder / "images" / "benchmarks.png")
    (folder / "benchmarks.json").write_text(render_json(readings, machine, others), encoding="utf-8")
    plot = "![ratios of all cases](images/benchmarks.png)"
    has_kernel = any(reading.side == KERNEL for reading in readings)
    begin = introduction(version, has_kernel=has_kernel)
    page = f"{begin}\n## Figures\n\n{plot}\n\n{render_page(readings, machine)}"
    if others is not None:
        page += f"\n{PAGE}\n{render_others(others)}"
    if around:
        page += "\n" + "\n".join(around) + "\n"
    (folder / "benchmarks.md").write_text(page, encoding="utf-8")


def render_json(readings: Sequence[CaseFigures], machine: Sequence[str], others: Others | None = None) -> str:
    """Returns all readings, for programs."""
    rows: list[dict[str, Any]] = [{"name": reading.case.name, **asdict(reading)} for reading in readings]
    page: dict[str, Any] = {"machine": list(machine), "readings": rows}
    if others is not None:
        page["others"] = others.as_json()
    return json.dumps(page, indent=1)


def draw(readings: Sequence[CaseFigures], path: Path) -> None:
    """Draws throughput and processor time of ours relative to Java's: a bar per case from 1 on a logarithmic
    axis, in the colour of its verdict, and a diamond for the brokers with the kernel.
    """
    from matplotlib.figure import Figure as Picture

    lines, row_places, titles = 0.0, [], []
    for setting, group in groupby(rows_of(readings), key=lambda row: row.case.setting):
        titles.append((lines, setting.name))
        for row in group:
            lines += 1
            row_places.append((lines, row))
        lines += 1.4
    picture = Picture(figsize=(13, 1.2 + 0.27 * lines), layout="constrained")
    for axes, what, more_is_better in zip(
        picture.subplots(1, 2, sharey=True),
        ("throughput, ours : Java (right is better)", "processor time, ours : Java (left is better)"),
        (True, False),
        strict=True,
    ):
        for place, row in row_places:
            figure = row.per_second if more_is_better else row.processor_us
            kernel = row.kernel_per_second if more_is_better else row.kernel_processor_us
            _draw_bar(axes, place, figure, more_is_better=more_is_better)
            if kernel is not None:
                axes.plot([kernel.ratio], [place], marker="D", color="black", markersize=4, zorder=3)
        axes.set_xscale("log")
        axes.set_xlim(TICKS[0], TICKS[-1])
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.axvline(1.0, color="black", linewidth=1)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        axes.set_title(what, fontsize=10)
        axes.set_ylim(lines - 0.4, -0.8)
    left = picture.axes[0]
    left.set_yticks(
        [place for place, _ in (*row_places, *titles)],
        [*(row.case.name for _, row in row_places), *(name for _, name in titles)],
        fontsize=8,
    )
    for label in left.get_yticklabels()[len(row_places) :]:
        label.set_fontweight("bold")
    picture.supxlabel("line: lowest and highest round; diamond: ours with tandemmq-speedups", fontsize=9)
    picture.savefig(path, dpi=120)


def _draw_bar(axes: Any, place: float, figure: Figure, *, more_is_better: bool) -> None:
    ratio = min(max(figure.ratio, TICKS[0]), TICKS[-1])
    gain = figure.ratio if more_is_better else 1 / figure.ratio if figure.ratio else EVEN_WITHIN
    colour = AHEAD if gain > EVEN_WITHIN else BEHIND if gain < 1 / EVEN_WITHIN else EVEN
    axes.barh(place, ratio - 1, left=1, color=colour, height=0.62)
    axes.plot([figure.ratio_min, figure.ratio_max], [place, place], color="#333333", linewidth=1)
    axes.annotate(
        f"{figure.ratio:.2f}",
        (TICKS[-1], place),
        ha="right",
        va="center",
        fontsize=7,
        xytext=(-3, 0),
        textcoords="offset points",
    )
