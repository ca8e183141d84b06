"""The rules of Raft, pure: messages and times in, values out; no sockets, files, clocks, tasks or chance
but what is handed in."""
