"""The source `commitlog`; see `pyspark_tandemmq`."""

from tandemmq.spark.commitlog_source import CommitLogSource as DefaultSource

__all__ = ["DefaultSource"]
