"""The demo: what a user sees of the driver, first on a node alone, then in a cluster."""
