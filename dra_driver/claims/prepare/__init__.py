"""From a claim to its CDI spec, and back."""
