"""ResourceClaims: allocation to devices and configs, prepare and unprepare."""
