"""The rules of replication, pure: bytes and times in, values out; no sockets, files, clocks, tasks or
logging."""
