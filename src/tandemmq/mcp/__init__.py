"""The cluster's reads and changes as tools for AI assistants, by the Model Context Protocol."""
