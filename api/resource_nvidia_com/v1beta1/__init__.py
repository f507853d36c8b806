"""Version v1beta1 of the claim configs."""
