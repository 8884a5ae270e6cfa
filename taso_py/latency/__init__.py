"""Measured latencies: clocks, the database, the environment they hold in, and the roofline."""
