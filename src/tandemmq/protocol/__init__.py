"""Bytes of the RocketMQ protocol and values, both ways; pure: no sockets, clocks, files or tasks.

Import from the files: `command`, `frame`, `codes`, `requests.*`, `bodies.*`, `record` and so on.
"""
