"""docs/architecture.md names every package and only files that exist, and its reading order stays short."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "architecture.md").read_text()
LAYERS: Final = ("schemas", "runtime", "storage", "service", "worker", "bin")
MAX_READING_LINES: Final = 2500


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_module_map_lists_every_package() -> None:
    listed = {row.split("`")[1] for row in section("Module map").splitlines() if row.startswith("| `")}
    packages = {
        str(path.parent.relative_to(ROOT))
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        if path.name != "__init__.py" and "migrations" not in path.parts
    }
    assert listed == packages


def test_every_path_on_the_page_exists() -> None:
    named = {
        *re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)`", PAGE),
        *re.findall(r"^ +([a-z_]+(?:/[a-z_]+)+) ", PAGE, re.MULTILINE),
    }
    assert len(named) > 50
    assert [name for name in sorted(named) if not any((ROOT / each).exists() for each in (name, f"{name}.py"))] == []


def test_the_reading_order_stays_below_a_number_of_lines() -> None:
    files = re.findall(r"`([a-z_/]+\.py)`", section("Reading order"))
    assert len(files) == len({*files}) > 10
    assert sum(len((ROOT / name).read_text().splitlines()) for name in files) <= MAX_READING_LINES
