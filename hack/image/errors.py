"""Errors about images, for users."""


class ImageError(Exception):
    """The text says what failed, and what to do."""
