"""Logs, metrics and the HTTP endpoint."""
