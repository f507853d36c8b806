"""Builds the driver's image without a registry, and inspects images."""
