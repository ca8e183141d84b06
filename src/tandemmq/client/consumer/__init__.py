"""Reading: the consumer, its share of the queues, pulls and offsets."""
