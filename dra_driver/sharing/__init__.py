"""Config to sharing strategy."""
