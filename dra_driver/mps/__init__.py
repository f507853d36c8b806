"""MPS: what the driver and the supervisor have in common, such as domains and their files."""
