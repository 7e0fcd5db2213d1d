"""docs/security.md covers every requirement once, and every test and file that it names exists."""

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
STATUSES: Final = {"met", "partly", "not met", "not applicable"}
_LINK: Final = re.compile(r"\[`([^`]+)`\]\(\.\./([^)#]+)\)")


class RequirementRow(NamedTuple):
    """A row of a table of requirements."""

    ids: tuple[str, ...]
    summary: str
    status: str
    evidence: str

    @property
    def links(self) -> list[tuple[str, str]]:
        """The text and the path of each link to a test or file."""
        return _LINK.findall(self.evidence)


def rows() -> Iterator[RequirementRow]:
    for line in DOCUMENT.splitlines():
        if re.match(r"\| V\d", line):
            ids, *cells = (cell.strip() for cell in line.strip().strip("|").split(" | "))
            yield RequirementRow(tuple(ids.split(", ")), *cells)


ROWS: Final = list(rows())


@cache
def functions_of(path: Path) -> frozenset[str]:
    # By regular expression: parsing all of tests/ takes seconds.
    return frozenset(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_every_requirement_of_levels_1_and_2_is_covered_exactly_once() -> None:
    if not ASVS.is_file():
        pytest.skip(f"{ASVS.name} not found in {CORPORA}; set CORPORA_DIR.")
    with ASVS.open(encoding="utf-8-sig", newline="") as file:
        required = [row for row in csv.DictReader(file) if row["L"] in {"1", "2"}]
    assert len(required) > 200
    # An id may be a requirement, or a section or chapter, which covers all its requirements.
    covered = {
        id_: [row["req_id"] for row in required if id_ in {row["req_id"], row["section_id"], row["chapter_id"]}]
        for row in ROWS
        for id_ in row.ids
    }
    assert [id_ for id_, requirements in covered.items() if not requirements] == []
    times = Counter(requirement for row in ROWS for id_ in row.ids for requirement in covered[id_])
    assert {row["req_id"]: times[row["req_id"]] for row in required if times[row["req_id"]] != 1} == {}


def test_every_row_has_a_summary_and_a_status() -> None:
    assert len(ROWS) > 100
    assert [row.ids for row in ROWS if row.status not in STATUSES or not row.summary] == []
    # A row that is not met has a reason.
    assert [row.ids for row in ROWS if row.status != "met" and not _LINK.sub("", row.evidence).strip(" ,;")] == []


def test_a_met_requirement_names_a_test_or_the_code() -> None:
    assert [row.ids for row in ROWS if row.status == "met" and not row.links] == []


def test_every_named_test_and_file_exists() -> None:
    named = {link for row in ROWS for link in row.links}
    assert len(named) > 100
    for text, target in sorted(named):
        path, _, test = text.partition("::")
        assert path == target
        assert (ROOT / path).is_file(), path
        assert not test or test in functions_of(ROOT / path), text


def test_the_summary_counts_the_rows() -> None:
    counts = dict(re.findall(r"^\| (met|partly|not met|not applicable) \| (\d+) \|", DOCUMENT, re.MULTILINE))
    assert {status: int(count) for status, count in counts.items()} == Counter(row.status for row in ROWS)
