"""An evidence capture: page metadata and a selection that a person sent with the browser extension.

The form is closed: a member that is not listed, at any depth, is refused and not dropped, so that nothing else of a page
(its HTML, its cookies, its storage) is sent unnoticed.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from schemas.base.fields import Array, Form, Integer, PageUrl, RecordForm, Text, Timestamp, optional, required
from schemas.base.timestamps import format_rfc3339_or_none

HEADING_LEVELS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")
#: In HTML documents, a browser's `tagName` is in upper case.
_ACCEPTED_LEVELS: Final = (*HEADING_LEVELS, *map(str.upper, HEADING_LEVELS))
#: Maximum number of headings of one page.
MAX_HEADINGS: Final = 200
#: More than a browser shows of a heading or a title.
MAX_LINE: Final = 1000
#: A version is a few digits and dots, and sometimes a build name.
MAX_VERSION: Final = 100


@dataclass(frozen=True, slots=True)
class Heading:
    """One heading of the page."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture, with its project and report; a field that was not sent is None."""

    project_id: int
    report_id: int | None
    page_url: str
    page_title: str | None
    selected_text: str | None
    meta_description: str | None
    canonical_url: str | None
    heading_outline: tuple[Heading, ...] | None
    captured_at: datetime | None
    extension_version: str | None


class _HeadingForm(RecordForm):
    makes = Heading
    level = Text(allowed=_ACCEPTED_LEVELS, post_load=str.lower, **required("The level of the heading."))
    text = Text(max_length=MAX_LINE, **required("The text of the heading."))


class UploadForm(Form):
    """The common fields of uploads of the extension, the plugin and the app."""

    project_id = Integer(minimum=1, **required("The id of the project."))
    report_id = Integer(minimum=1, **optional("The id of the report, which must belong to the project."))


class CaptureForm(UploadForm, RecordForm):
    """The body of `POST /api/browser-extension/evidence-captures`."""

    makes = Capture
    page_url = PageUrl(**required("The URL of the page."))
    page_title = Text(max_length=MAX_LINE, **optional("The title of the page."))
    selected_text = Text(**optional("The selected text."))
    meta_description = Text(**optional("The meta description of the page."))
    canonical_url = PageUrl(**optional("The canonical URL of the page."))
    heading_outline = Array(
        _HeadingForm, at_most=MAX_HEADINGS, post_load=tuple, **optional("The headings of the page, in order.")
    )
    captured_at = Timestamp(**optional("The time at which the page was captured."))
    extension_version = Text(max_length=MAX_VERSION, **optional("The version of the extension."))


def captured_facts(capture: Capture) -> dict[str, Any]:
    """Return the captured fields as JSON, without project and report; a field that was not sent is None."""
    facts = asdict(capture)
    del facts["project_id"], facts["report_id"]
    facts["heading_outline"] = outline_record(capture)
    facts["captured_at"] = format_rfc3339_or_none(capture.captured_at)
    return facts


def outline_record(capture: Capture) -> list[dict[str, str]] | None:
    """Return the headings as JSON; None if the capture has no outline."""
    return None if capture.heading_outline is None else [asdict(heading) for heading in capture.heading_outline]
