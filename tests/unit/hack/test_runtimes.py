"""The table of container runtimes on a page, and what of a report it says."""

import runtimes


def test_every_test_that_it_runs_exists() -> None:
    for name in runtimes.TESTS:
        path, *words = name.split("::")
        text = (runtimes.REPOSITORY / "tests/e2e" / path).read_text()
        assert all(f"{word}(" in text or f"class {word}:" in text for word in words), name
