"""The style check: vale with this repository's rules and words."""
