"""Benchmarks of the driver, and what they have in common."""
