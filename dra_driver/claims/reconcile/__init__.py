"""Brings disk, hardware and API server in line."""
