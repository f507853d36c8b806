"""Turns the inventory into ResourceSlices, and keeps them published."""
