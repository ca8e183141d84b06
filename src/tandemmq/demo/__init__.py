"""The main use case as one command: real messages through a master and a slave into a Spark table, counted in
five ways.
"""
