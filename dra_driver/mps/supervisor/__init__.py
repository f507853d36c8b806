"""The process that keeps the MPS daemons that are asked for."""
