"""A description of a node in one archive: for issues, and for the simulator."""
