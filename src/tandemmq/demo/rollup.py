"""The aggregation of the landed table: flights and mean departure delay per carrier and hour, as a table and
a plot.

Runs as a separate process (`python -m tandemmq.demo.rollup TABLE OUT PLOT`), because a Spark session is best
ended with its process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tandemmq.spark.session import build_session

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_BODY_SCHEMA = "carrier string, hour int, dep_delay double"
_CARRIERS_MAX = 8


def delays_by_carrier_and_hour(landed: DataFrame) -> DataFrame:
    """Returns one row per carrier and scheduled hour: `flights`, and `mean_dep_delay` in minutes (without
    cancelled flights).
    """
    from pyspark.sql import functions as F

    flight = F.from_json(F.col("body").cast("string"), _BODY_SCHEMA)
    return (
        landed.select(flight.alias("f"))
        .select("f.*")
        .groupBy("carrier", "hour")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_dep_delay"))
        .orderBy("carrier", "hour")
    )


def plot_delays(table: pd.DataFrame, path: Path) -> None:
    """Writes a PNG: mean departure delay over the day for the busiest carriers, above the number of
    flights.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    busiest = table.groupby("carrier")["flights"].sum().nlargest(_CARRIERS_MAX).index
    figure, (delays, counts) = plt.subplots(
        2, 1, figsize=(9, 6), sharex=True, height_ratios=[3, 1], layout="constrained"
    )
    for carrier in busiest:
        # An hour with a handful of flights reflects one aircraft rather than the hour.
        rows = table[(table["carrier"] == carrier) & (table["flights"] >= 30)].sort_values("hour")
        delays.plot(rows["hour"], rows["mean_dep_delay"], marker="o", markersize=3, label=carrier)
    delays.set_ylabel("mean departure delay (minutes)")
    delays.set_title("Flights from New York City, 2013: delays grow through the day")
    delays.legend(title="carrier", ncols=4, frameon=False)
    delays.axhline(0, color="grey", linewidth=0.8)
    by_hour = table.groupby("hour")["flights"].sum()
    counts.bar(by_hour.index, by_hour.to_numpy(), color="grey")
    counts.set_ylabel("flights")
    counts.set_xlabel("scheduled hour of departure")
    counts.set_xticks(range(0, 24, 3))
    for axes in (delays, counts):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(landed_directory: str, out_directory: str, plot_path: str) -> None:
    """Reads the landed table, writes the second table and its plot."""
    session = build_session("tandemmq demo rollup")
    try:
        delays = delays_by_carrier_and_hour(session.read.parquet(landed_directory))
        delays.coalesce(1).write.mode("overwrite").parquet(out_directory)
        plot_delays(session.read.parquet(out_directory).toPandas(), Path(plot_path))
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
