"""A broker's part in its group of replicas: copies of the log and the tables, and the state of both."""
