"""The demo: shows the driver to a user, first on a node alone, then in a cluster."""
