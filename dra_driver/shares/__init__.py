"""Which share config holds on this node, and what it says."""
