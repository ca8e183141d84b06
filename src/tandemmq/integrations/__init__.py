"""Frameworks on TandemMQ: each module needs the framework that it serves."""
