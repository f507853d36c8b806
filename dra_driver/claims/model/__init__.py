"""A claim, its config, its devices and its record, as frozen values."""
