"""Benchmarks that print measurements; none of them passes or fails."""
