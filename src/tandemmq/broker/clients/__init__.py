"""Who is connected, in which groups, and what those want."""
