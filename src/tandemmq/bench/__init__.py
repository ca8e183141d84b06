"""Benchmarks that print figures; nothing here passes or fails."""
