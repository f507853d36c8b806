"""Composition: builds every part of the driver once, starts and stops them in order."""
