"""Prepares a release and checks that it is complete."""
