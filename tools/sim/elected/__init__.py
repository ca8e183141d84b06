"""The simulated cluster whose brokers are elected by controllers, and change their roles."""
