"""The simulated cluster whose brokers are elected: controllers, brokers that change their role, and their clients."""
