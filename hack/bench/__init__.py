"""Benchmarks of the driver; what they share."""
