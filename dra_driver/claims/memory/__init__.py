"""Watches the memory limits of shares."""
