"""The control groups of pods, and their memory limits."""
