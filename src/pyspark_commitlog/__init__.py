"""The source `commitlog`; see `pyspark_tandemmq`."""

from tandemmq.spark.commitlog import CommitLogSource as DefaultSource

__all__ = ["DefaultSource"]
