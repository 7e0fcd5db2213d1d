"""Every block of the documents is what its page says: it runs as pasted, prints what is shown, or says why it is not run."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.named import wrong_in
from tests.docs.pasting import Installations, Reader
from tests.docs.snippets import PAGES, Use, problem_with, read_page
from tests.journeys.test_readme import story

READ: Final = {page.name: page for page in map(read_page, PAGES)}
PASTED: Final = [name for name, page in READ.items() if page.is_pasted]


@pytest.fixture(scope="module")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installations]:
    """What the pages talk to."""
    with Installations(tmp_path_factory.mktemp("pages")) as running:
        yield running


@pytest.mark.parametrize("name", READ)
def test_every_block_says_what_it_is_and_is_in_its_language(name: str) -> None:
    page = READ[name]
    assert [*page.problems, *filter(None, map(problem_with, page.snippets))] == []


@pytest.mark.parametrize("name", READ)
def test_a_file_of_a_page_is_used_by_a_later_block(name: str) -> None:
    snippets = READ[name].snippets
    shells = [each for each in snippets if each.language == "sh" and each.use in {Use.RUN, Use.BACKGROUND}]
    files = [each for each in snippets if each.use is Use.FILE]
    unused = [each.place for each in files if not any(each.said in later.text for later in shells if later.line > each.line)]
    assert unused == []


def test_a_block_of_the_story_is_one_that_the_readmes_test_runs() -> None:
    told = [(each, name) for name, page in READ.items() for each in page.snippets if each.use is Use.STORY]
    assert len(told) > 5
    assert [each.place for each, name in told if name != "README.md" or each.text not in story(each.said)] == []
    assert {each.said for each, _ in told} == {"installation", "receiver", "steps"}


@pytest.mark.parametrize("name", READ)
def test_every_command_in_a_block_is_there_with_its_arguments(name: str) -> None:
    shells = [each for each in READ[name].snippets if each.language in {"sh", "cron"}]
    assert [wrong for each in shells for wrong in wrong_in(each)] == []


@pytest.mark.parametrize("name", PASTED)
def test_what_a_page_shows_works_as_pasted(name: str, installations: Installations, tmp_path: Path) -> None:
    page = READ[name]
    with Reader(page, installations.of(page.settings), tmp_path / "risk relay") as reader:
        reader.paste_all()


PYTHON: Final = {
    each.place: each.in_place
    for page in READ.values()
    for each in page.snippets
    if each.language == "python" and each.use is Use.RUN
}


@pytest.mark.parametrize("place", PYTHON)
def test_python_on_a_page_runs(place: str, tmp_path: Path) -> None:
    words = [sys.executable, "-W", "error", "-c", PYTHON[place]]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, f"{place}: {told.stderr}"
