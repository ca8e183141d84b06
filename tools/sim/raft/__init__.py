"""Groups of Raft servers in a world without a machine: their real core and files, simulated everything
else."""
