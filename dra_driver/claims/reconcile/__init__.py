"""Brings disk, hardware and API server into agreement."""
