"""The pictures of the console in the documents: all of them are there, small, and made anew by one command."""

import subprocess
import sys
from pathlib import Path

from tests.docs.screenshots import FOLDER, MOST_BYTES, PICTURES
from tests.runtimes import runtime

ROOT = Path(__file__).resolve().parents[2]
#: The one with the most on it; each more takes seconds.
SOME = ("target-phone-dark.png",)


def test_every_picture_is_there_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*PICTURES}


def test_each_is_a_small_picture() -> None:
    for name in PICTURES:
        content = (FOLDER / name).read_bytes()
        assert content.startswith(b"\x89PNG\r\n"), name
        assert 5_000 < len(content) < MOST_BYTES, name


def test_the_command_takes_the_same_pictures_again(tmp_path: Path) -> None:
    runtime("chromium")
    first, second = (made_in(tmp_path / folder) for folder in ("first", "second"))
    assert {*first} == {*SOME}
    assert first == second


def made_in(folder: Path) -> dict[str, bytes]:
    """Run the command for some pictures and return them."""
    words = [sys.executable, "-m", "tests.docs.screenshots", str(folder), *SOME]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [line.partition("  ")[0] for line in ran.stdout.splitlines()] == [str(folder / name) for name in SOME]
    return {path.name: path.read_bytes() for path in folder.iterdir()}
