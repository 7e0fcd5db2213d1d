"""The fields of a page's form, as a browser would submit them unchanged."""

from html.parser import HTMLParser

from falcon.testing import Result


class _FieldReader(HTMLParser):
    """Collects the `fields` of the form with this action."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._action = action
        self._is_inside = False
        #: The names of the current select and textarea elements.
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Store the value of a field."""
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_inside = given.get("action") == self._action
        if not self._is_inside:
            return
        if tag == "input" and "name" in given and ("checked" in given or given.get("type") not in {"checkbox", "radio"}):
            self.fields[given["name"]] = given.get("value", "")
        elif tag == "textarea":
            self._area = given["name"]
            self.fields[self._area] = ""
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and ("selected" in given or self._select not in self.fields):
            self.fields[self._select] = given["value"]

    def handle_data(self, data: str) -> None:
        """Append to the text of a textarea."""
        if self._area:
            self.fields[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        """Normalize the text of a textarea as browsers do: drop a leading line break, and end each line with CR LF."""
        if tag == "textarea" and self._area:
            lines = self.fields[self._area].replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")
            self.fields[self._area], self._area = lines.replace("\n", "\r\n"), ""
        elif tag == "form":
            self._is_inside = False


def shown_fields(page: Result, action: str) -> dict[str, str]:
    """Return the fields of the form with this action below /console, without the CSRF token."""
    form = _FieldReader(f"/console{action}")
    form.feed(page.text)
    return {name: value for name, value in form.fields.items() if name != "csrf"}


def in_words(path: str) -> str:
    """Return the name of a field as error pages show it."""
    return path.strip("/").replace("_", " ").capitalize()
