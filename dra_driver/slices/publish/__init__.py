"""Desired slices to the API server, and kept there."""
