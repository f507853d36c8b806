"""MPS as the driver asks for it of the supervisor: domains, files, processes."""
