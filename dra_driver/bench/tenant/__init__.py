"""What a tenant of the benchmark runs, in a process of its own."""
