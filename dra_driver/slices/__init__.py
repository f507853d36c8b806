"""Inventory to ResourceSlices."""
