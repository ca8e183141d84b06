"""The rules of replication. Pure: bytes and times in, values out; no sockets, files, clocks, tasks or
logging.
"""
