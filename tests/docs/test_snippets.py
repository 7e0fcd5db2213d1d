"""Every block of the documentation runs as pasted and prints the documented output, or has a reason not to run."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.names import errors_in_block
from tests.docs.pasting import Installations, PageRunner
from tests.docs.snippets import PAGES, Use, problem_with, read_page
from tests.journeys.setup.test_readme import story

READ: Final = {page.name: page for page in map(read_page, PAGES)}
PASTED: Final = [name for name, page in READ.items() if page.is_pasted]


@pytest.fixture(scope="module")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installations]:
    """The installations that the pages use."""
    with Installations(tmp_path_factory.mktemp("pages")) as running:
        yield running


@pytest.mark.parametrize("name", READ)
def test_every_block_declares_its_use_and_is_valid(name: str) -> None:
    page = READ[name]
    assert [*page.problems, *filter(None, map(problem_with, page.snippets))] == []


@pytest.mark.parametrize("name", READ)
def test_a_file_of_a_page_is_used_by_a_later_block(name: str) -> None:
    snippets = READ[name].snippets
    shells = [each for each in snippets if each.language == "sh" and each.use in {Use.RUN, Use.BACKGROUND}]
    files = [each for each in snippets if each.use is Use.FILE]
    unused = [
        each.place for each in files if not any(each.argument in later.text for later in shells if later.line > each.line)
    ]
    assert unused == []


def test_every_story_block_is_run_by_the_test_of_its_page() -> None:
    found = [(each, name) for name, page in READ.items() for each in page.snippets if each.use is Use.STORY]
    assert len(found) > 5
    assert {name for _, name in found} == {"docs/first-ticket.md"}
    assert [each.place for each, _ in found if each.text not in story(each.argument)] == []
    assert {each.argument for each, _ in found} == {"installation", "receiver", "scanner", "steps"}


@pytest.mark.parametrize("name", READ)
def test_every_command_in_a_block_exists_with_its_arguments(name: str) -> None:
    shells = [each for each in READ[name].snippets if each.language in {"sh", "cron"}]
    assert [wrong for each in shells for wrong in errors_in_block(each)] == []


@pytest.mark.parametrize("name", PASTED)
def test_a_page_works_as_pasted(name: str, installations: Installations, tmp_path: Path) -> None:
    page = READ[name]
    with PageRunner(page, installations.of(page.settings), tmp_path / "risk relay") as reader:
        reader.paste_all()


PYTHON: Final = {
    each.place: each.padded_text
    for page in READ.values()
    for each in page.snippets
    if each.language == "python" and each.use is Use.RUN
}


@pytest.mark.parametrize("place", PYTHON)
def test_python_code_on_a_page_runs(place: str, tmp_path: Path) -> None:
    words = [sys.executable, "-W", "error", "-c", PYTHON[place]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{place}: {done.stderr}"
