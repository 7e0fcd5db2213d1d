"""No link of the documents leads nowhere, and no common word is misspelled, anywhere in the repository.

lychee follows links offline: files, and headings by the names that a forge gives them. codespell knows thousands of slips of
the hand; what it takes for one and is none stands below.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.snippets import PAGES, ROOT

COMMANDS: Final = Path(sys.executable).parent

#: Right as they are, by where they stand.
RIGHT: Final = (
    # the first half of a French one, before an escaped letter
    "caf",
    # the first word of the French for password
    "mot",
    # a member of wapiti's reports
    "additionals",
    # a ticket's title under a name that nobody knows, in a test vector
    "titel",
    # when to try again, in receivers of other languages
    "retryin",
)
#: Made by machines, or not ours.
SKIPPED: Final = (
    ".git",
    ".venv*",
    "data",
    "build",
    ".*_cache",
    ".hypothesis",
    "*.egg-info",
    "*.lock",
    "*.pyc",
    "*.svg",
    "latest*.json",
)


def misspelled(*paths: Path) -> str:
    words = ["--skip", ",".join(SKIPPED), "--ignore-words-list", ",".join(RIGHT), "--quiet-level", "2"]
    return told([str(COMMANDS / "codespell"), *words, *map(str, paths)])


def broken(*paths: Path) -> str:
    """Return what lychee says of the links of documents; nothing where all of them lead somewhere."""
    words = ["--offline", "--include-fragments", "--no-progress", "--quiet", "--format", "compact"]
    return told([str(COMMANDS / "lychee"), *words, *map(str, paths)])


def told(words: list[str]) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_no_word_is_misspelled() -> None:
    assert misspelled(Path()) == ""


def test_every_link_of_the_documents_leads_somewhere() -> None:
    assert broken(*PAGES) == ""


def test_a_slip_of_the_hand_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    # put together here, so that this file has none
    page.write_text("What we rec" + "ieve, said in a caf\\u00e9.\n")
    assert "==> receive" in misspelled(page)
    page.write_text("What we receive, said in a caf\\u00e9.\n")
    assert misspelled(page) == ""


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("other.md", False),
        ("other.md#what-it-is-for", False),
        ("#a-page", False),
        # nobody is asked
        ("https://shop.example/nothing", False),
        ("another.md", True),
        ("other.md#what-it-was-for", True),
        ("#no-page", True),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, is_broken: bool, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"# A page\n\nSee [this]({link}).\n")
    (tmp_path / "other.md").write_text("# Another page\n\n## What it is for\n\nNothing.\n")
    assert (broken(tmp_path / "page.md") != "") == is_broken
