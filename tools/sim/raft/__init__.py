"""Groups of Raft servers without machines: their core and files are real, everything else is simulated."""
