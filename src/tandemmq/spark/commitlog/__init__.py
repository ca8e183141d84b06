"""CommitLog files as a table, without a broker: for proofs and after disasters."""
