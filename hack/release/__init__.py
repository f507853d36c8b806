"""Prepares a release and checks that nothing of it is missing."""
