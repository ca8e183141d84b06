"""The main job as one command: real messages through a master and a slave into a Spark table, counted
five ways."""
