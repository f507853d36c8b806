"""Tokens that are renewed in their file."""

from pathlib import Path

import pytest

from clock import Clock
from dra_driver.errors import SetupError
from dra_driver.kube.client import REREAD_SECONDS, TokenFile


def test_a_token_is_read_again_after_a_minute_and_not_before(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("one\n")
    tokens = TokenFile(file, clock=clock)
    assert tokens.token() == "one"
    file.write_text("two\n")
    clock.now += REREAD_SECONDS - 1
    assert tokens.token() == "one"
    clock.now += 1
    assert tokens.token() == "two"


@pytest.mark.parametrize("content", [None, "", "\n", "\xe9"])
def test_a_file_that_cannot_be_read_just_now_does_not_lose_the_token(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    tokens = TokenFile(file, clock=Clock())
    tokens.token()
    tokens.expire()
    file.unlink()
    if content is not None:
        file.write_text(content, encoding="latin-1")
    assert tokens.token() == "one"


def test_no_token_at_all_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nowhere"):
        TokenFile(tmp_path / "nowhere", clock=Clock()).token()
