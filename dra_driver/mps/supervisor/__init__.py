"""The process that starts the MPS daemons and keeps them running."""
