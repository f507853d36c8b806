"""A claim, its config, its devices, its record, as frozen values."""
