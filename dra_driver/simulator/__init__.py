"""Simulated GPUs: a libnvidia-ml.so.1 and a driver root whose machine is a YAML profile."""
