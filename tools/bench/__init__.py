"""Benchmarks beside other brokers; they print figures, and nothing here passes or fails."""
