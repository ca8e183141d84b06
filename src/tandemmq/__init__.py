"""TandemMQ: a RocketMQ-compatible message broker in Python with a Spark data pipeline."""

import sys

__version__ = "0.1.0"

if sys.flags.optimize:
    # Invariants are asserts; a broker without them could write a log it would itself refuse to read.
    raise ImportError("tandemmq refuses to run under `python -O`: its invariants are asserts")
