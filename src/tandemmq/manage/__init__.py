"""The reads and changes of a running cluster as functions, shared by operators' commands and pages."""
