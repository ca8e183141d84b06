"""What operators ask and change from the command line, by the names that mqadmin has."""
