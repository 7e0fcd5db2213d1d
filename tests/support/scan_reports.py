"""The reports under `scan_reports/`, whose README tells which tool wrote them and how, and what is made of them."""

from pathlib import Path
from typing import Final

from bin.scan_import.formats import flaws_in
from bin.scan_import.pages import Import, prepare

REPORTS: Final = Path(__file__).resolve().parents[1] / "bin" / "scan_import" / "reports"
FILES: Final = {
    "zap": REPORTS / "zap.json",
    "lighthouse": REPORTS / "lighthouse.json",
    "nuclei": REPORTS / "nuclei.jsonl",
    "wapiti": REPORTS / "wapiti.json",
    "sarif": REPORTS / "sarif.json",
}
SHOP: Final = "https://shop.example/"


def imported(name: str, content: bytes | None = None) -> Import:
    """Return what becomes of a report, or of other bytes in its format, as scan run 7."""
    return prepare(flaws_in(FILES[name].read_bytes() if content is None else content, name), 7)
