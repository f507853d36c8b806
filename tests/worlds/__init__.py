"""Nodes with the driver's objects in the test's process, which can stop them at each step."""
