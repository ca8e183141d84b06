"""The progress of consumer groups."""
