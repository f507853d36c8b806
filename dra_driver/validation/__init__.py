"""Claim configs checked where no node is involved: in files, and by the API server."""
