"""Documentation links work, and the repository contains no common misspelling.

lychee checks links to files and headings offline, with the heading ids of GitHub. codespell checks spelling; its false
positives are in ALLOWED_WORDS.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.snippets import PAGES, ROOT

COMMANDS: Final = Path(sys.executable).parent

#: Correct words that codespell reports, with their origin.
ALLOWED_WORDS: Final = (
    # the start of a French word, before an escaped letter
    "caf",
    # the first word of the French for password
    "mot",
    # a member of wapiti's reports
    "additionals",
    # an unknown field name, in a test vector
    "titel",
    # a variable name in receivers of other languages
    "retryin",
    # a header of HTTP
    "te",
)
#: Generated or third-party files.
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
    words = ["--skip", ",".join(SKIPPED), "--ignore-words-list", ",".join(ALLOWED_WORDS), "--quiet-level", "2"]
    return report_of([str(COMMANDS / "codespell"), *words, *map(str, paths)])


def broken(*paths: Path) -> str:
    """Return lychee's report on broken links, empty if there are none."""
    words = ["--offline", "--include-fragments", "--no-progress", "--quiet", "--format", "compact"]
    return report_of([str(COMMANDS / "lychee"), *words, *map(str, paths)])


def report_of(words: list[str]) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_no_word_is_misspelled() -> None:
    assert misspelled(Path()) == ""


def test_no_link_of_the_documentation_is_broken() -> None:
    assert broken(*PAGES) == ""


def test_a_misspelling_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    # concatenated, so that this file contains no misspelling
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
        # not requested
        ("https://shop.example/nothing", False),
        ("another.md", True),
        ("other.md#what-it-was-for", True),
        ("#no-page", True),
    ],
)
def test_a_broken_link_is_detected(link: str, is_broken: bool, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"# A page\n\nSee [this]({link}).\n")
    (tmp_path / "other.md").write_text("# Another page\n\n## What it is for\n\nNothing.\n")
    assert (broken(tmp_path / "page.md") != "") == is_broken
