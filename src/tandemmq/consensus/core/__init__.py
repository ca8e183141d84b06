"""The rules of Raft as pure code: messages and times in, values out. No sockets, files, clocks or tasks;
random numbers come from a function that the caller passes.
"""
