"""The web console: pages about one cluster, rendered on the server. It needs the extra `console`."""
