"""Consumers: their share of the queues, pulls and offsets."""
