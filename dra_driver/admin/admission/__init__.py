"""Admission policies in CEL, generated from the rules of the config models."""
