"""Converts between bytes of the RocketMQ protocol and values; pure: no sockets, clocks, files or tasks.

Import from the files: `command`, `frame`, `codes`, `requests.*`, `bodies.*`, `record` and so on.
"""
