"""A broker whose role is decided by controllers: its id, its heartbeats, the change of its role."""
