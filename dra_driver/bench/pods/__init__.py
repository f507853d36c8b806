"""Tenants as pods of a cluster."""
