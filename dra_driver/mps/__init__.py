"""What the driver and the supervisor share about MPS: domains, files, processes."""
