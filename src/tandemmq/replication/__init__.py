"""Copying the CommitLog from a master to its slaves: `core` holds the rules, `shell` the sockets."""
