"""Builds the driver's image where no registry can be reached, and looks into what was built."""
