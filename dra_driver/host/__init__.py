"""What any program of this driver needs of its machine: files, locks, threads, signals."""
