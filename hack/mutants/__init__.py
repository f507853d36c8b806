"""What the tests would catch: small faults in a copy of the code, and whether a test fails."""
