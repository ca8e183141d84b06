"""The source under its alias `rocketmq`; see `pyspark_tandemmq`."""

from tandemmq.spark.source import RocketSource as DefaultSource

__all__ = ["DefaultSource"]
