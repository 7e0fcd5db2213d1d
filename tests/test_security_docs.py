"""docs/security.md covers what it says it covers, and what it names is there."""

import csv
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.corpora import CORPORA

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = (ROOT / "docs" / "security.md").read_text()
ASVS: Final = CORPORA / "asvs" / "asvs-5.0.0.csv"
VERDICTS: Final = {"met", "partly", "not met", "not applicable"}
_PLACE: Final = re.compile(r"\[`([^`]+)`\]\(\.\./([^)#]+)\)")


class Row(NamedTuple):
    """One line of a table of requirements."""

    ids: tuple[str, ...]
    asked: str
    verdict: str
    told: str

    @property
    def places(self) -> list[tuple[str, str]]:
        """What shows it: the words of each link and where it leads."""
        return _PLACE.findall(self.told)


def rows() -> Iterator[Row]:
    for line in DOCUMENT.splitlines():
        if re.match(r"\| V\d", line):
            ids, asked, verdict, told = (cell.strip() for cell in line.strip().strip("|").split(" | "))
            yield Row(tuple(ids.split(", ")), asked, verdict, told)


ROWS: Final = list(rows())


@cache
def functions_of(path: Path) -> frozenset[str]:
    # By lines: to parse the whole of tests/ takes seconds.
    return frozenset(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_every_requirement_of_levels_1_and_2_is_covered_exactly_once() -> None:
    if not ASVS.is_file():
        pytest.skip(f"There is no {ASVS.name} in {CORPORA}; set CORPORA_DIR.")
    with ASVS.open(encoding="utf-8-sig", newline="") as file:
        asked = [row for row in csv.DictReader(file) if row["L"] in {"1", "2"}]
    assert len(asked) > 200
    # An id may be a requirement, a section or a chapter; the last two stand for what they hold.
    covered = {
        id_: [row["req_id"] for row in asked if id_ in {row["req_id"], row["section_id"], row["chapter_id"]}]
        for row in ROWS
        for id_ in row.ids
    }
    assert [id_ for id_, held in covered.items() if not held] == []
    times = Counter(held for row in ROWS for id_ in row.ids for held in covered[id_])
    assert {row["req_id"]: times[row["req_id"]] for row in asked if times[row["req_id"]] != 1} == {}


def test_every_row_says_what_is_asked_and_how_it_stands() -> None:
    assert len(ROWS) > 100
    assert [row.ids for row in ROWS if row.verdict not in VERDICTS or not row.asked] == []
    # Whatever is not plainly met has its reason.
    assert [row.ids for row in ROWS if row.verdict != "met" and not _PLACE.sub("", row.told).strip(" ,;")] == []


def test_what_is_met_names_a_test_or_the_code() -> None:
    assert [row.ids for row in ROWS if row.verdict == "met" and not row.places] == []


def test_every_test_and_file_that_is_named_is_there() -> None:
    named = {place for row in ROWS for place in row.places}
    assert len(named) > 100
    for words, link in sorted(named):
        path, _, test = words.partition("::")
        assert path == link
        assert (ROOT / path).is_file(), path
        assert not test or test in functions_of(ROOT / path), words


def test_the_count_is_that_of_the_rows() -> None:
    told = dict(re.findall(r"^\| (met|partly|not met|not applicable) \| (\d+) \|", DOCUMENT, re.MULTILINE))
    assert {verdict: int(count) for verdict, count in told.items()} == Counter(row.verdict for row in ROWS)
