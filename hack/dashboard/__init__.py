"""Draws the dashboard of the chart for the documentation, from what a real Prometheus answers."""
