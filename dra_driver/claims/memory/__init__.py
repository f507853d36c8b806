"""Memory limits of shares, looked after."""
