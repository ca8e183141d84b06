"""What the project tells about itself: log events."""
