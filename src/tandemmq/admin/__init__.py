"""The operators' commands of the command line, under the names that mqadmin uses."""
