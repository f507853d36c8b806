"""How long pods take to start, with claims and without."""
