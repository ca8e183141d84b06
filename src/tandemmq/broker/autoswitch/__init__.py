"""A broker whose role is decided by controllers: its id, its heartbeats and its role changes."""
