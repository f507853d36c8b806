"""What can go wrong with an image, for the person who asked for it."""


class ImageError(Exception):
    """The text says what did not work, and what to do."""
