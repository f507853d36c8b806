"""Writes the desired slices to the API server, and keeps them there."""
