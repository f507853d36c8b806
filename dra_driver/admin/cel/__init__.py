"""The Common Expression Language, as far as selectors of devices need it."""
