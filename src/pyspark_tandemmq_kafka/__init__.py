"""The source and sink with Kafka's columns; see `pyspark_tandemmq`."""

from tandemmq.spark.source import KafkaShapedSource as DefaultSource

__all__ = ["DefaultSource"]
