"""The fields of a page's form as a browser sends them back when nobody changes anything."""

from html.parser import HTMLParser

from falcon.testing import Result


class _FieldReader(HTMLParser):
    """Reads the form with an action; `fields` are what it sends."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._action = action
        self._is_inside = False
        #: The names of the open drop-down and the open text area.
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the value of a field."""
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
        """Keep the text of a text area."""
        if self._area:
            self.fields[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        """Send a text area's lines as browsers do: without the first line break, and each ended by CR LF."""
        if tag == "textarea" and self._area:
            lines = self.fields[self._area].replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")
            self.fields[self._area], self._area = lines.replace("\n", "\r\n"), ""
        elif tag == "form":
            self._is_inside = False


def shown_fields(page: Result, action: str) -> dict[str, str]:
    """Return the fields of the form that is sent to a path below the console, without its token."""
    form = _FieldReader(f"/console{action}")
    form.feed(page.text)
    return {name: value for name, value in form.fields.items() if name != "csrf"}


def in_words(path: str) -> str:
    """Return a field as the page of an error names it, by its path or its name."""
    return path.strip("/").replace("_", " ").capitalize()
