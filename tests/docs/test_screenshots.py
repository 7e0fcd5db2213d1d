"""The screenshots of the console are complete, small, shown in the documentation, and reproduced by one command."""

import re
import subprocess
import sys
from pathlib import Path

from schemas.trackers.registry import TRACKERS
from tests.docs.screenshots import FOLDER, FORMS, MAX_BYTES, PICTURES
from tests.support.servers.runtimes import runtime

ROOT = Path(__file__).resolve().parents[2]
#: The page with the most content, on a phone; each further picture takes seconds.
SOME = ("target-phone-light.png",)


def test_the_folder_holds_exactly_the_pictures() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*PICTURES}


def test_the_documentation_shows_every_picture() -> None:
    forms = {f"add-{provider}-light.png" for provider in FORMS}
    assert set(re.findall(r"\]\(console/([^)]+)\)", (ROOT / "docs" / "console.md").read_text())) == {*PICTURES} - forms


def test_the_page_of_every_target_shows_its_form() -> None:
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "targets").glob("*.md") if path.stem != "index"}
    assert {*pages} == {*FORMS} == {"webhook", *TRACKERS}
    for provider, text in pages.items():
        assert f"](../console/add-{provider}-light.png)" in text


def test_each_picture_is_a_small_png() -> None:
    for name in PICTURES:
        content = (FOLDER / name).read_bytes()
        assert content.startswith(b"\x89PNG\r\n"), name
        assert 5_000 < len(content) < MAX_BYTES, name


def test_the_command_produces_identical_pictures_on_repetition(tmp_path: Path) -> None:
    runtime("chromium-headless-shell")
    first, second = (made_in(tmp_path / folder) for folder in ("first", "second"))
    assert {*first} == {*SOME}
    assert first == second


def made_in(folder: Path) -> dict[str, bytes]:
    """Run the command for SOME pictures and return their content by name."""
    words = [sys.executable, "-m", "tests.docs.screenshots", str(folder), *SOME]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [line.partition("  ")[0] for line in ran.stdout.splitlines()] == [str(folder / name) for name in SOME]
    return {path.name: path.read_bytes() for path in folder.iterdir()}
