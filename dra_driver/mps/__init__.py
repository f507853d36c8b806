"""What driver and supervisor both know of MPS: domains, files, processes."""
