"""Which share config a node uses, and what it says."""
