"""Taking messages in."""
