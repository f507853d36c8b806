"""Devices and edits to CDI specs."""
