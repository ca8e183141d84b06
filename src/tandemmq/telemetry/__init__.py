"""Telemetry: log events and metrics."""
