"""A small API server for contract tests: stores, watches and validates as the real one does."""
