"""Handling of sends."""
