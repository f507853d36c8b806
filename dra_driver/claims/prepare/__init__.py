"""Turns a claim into a CDI spec, and takes that back."""
