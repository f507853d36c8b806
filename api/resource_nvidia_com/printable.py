"""Texts of strangers, so that a terminal, a log or an event shows them and acts on nothing in them.

Names, manifests and messages may hold escape sequences, which clear a screen or write to the
clipboard, and marks that turn the direction of text round.
"""

import json


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text with each character that does not print as JSON escapes it: `\u001b`.

    What prints is what Unicode calls so, and the blank; `keep` has others that stay, such as line
    breaks. Invisible characters and marks of direction do not print.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else json.dumps(one)[1:-1] for one in text
    )
