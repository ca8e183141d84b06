"""Compares Spark's Kafka source with ours: a Kafka broker on this machine, the same messages, one Spark
session.
"""
