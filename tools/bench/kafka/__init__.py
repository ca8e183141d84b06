"""Spark's Kafka source beside ours: a Kafka broker of this machine, the same messages, one Spark session."""
