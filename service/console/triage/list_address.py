"""The address of a list: its filters, order, page and open ticket, as links and forms of the page keep them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from schemas.triage.export_filter import join_values, split_values

#: Parameters of one place in a list; another filter or order begins at the first page.
_PLACE: Final = ("cursor", "export")


@dataclass(frozen=True, slots=True)
class ListAddress:
    """A list's path, relative to the console, and its parameters; empty values are left out."""

    path: str
    params: Mapping[str, str]

    def href(self, **changes: str | None) -> str:
        """Return the address with changed parameters; None removes one. Filters and page stay otherwise."""
        kept = {name: text for name, text in {**self.params, **changes}.items() if text}
        # Commas between values stay readable.
        return f"{self.path}?{urlencode(kept, safe=',')}" if kept else self.path

    def filtered(self, **changes: str | None) -> str:
        """Return the address of the first page with changed filters."""
        return self.href(**dict.fromkeys(_PLACE), **changes)

    def toggled(self, name: str, value: str) -> str:
        """Return the address with a value added to a filter that allows several, or removed from it."""
        chosen = self.values(name)
        left = [each for each in chosen if each != value] if value in chosen else [*chosen, value]
        return self.filtered(**{name: join_values(left)})

    def values(self, name: str) -> list[str]:
        """Return the values of a filter."""
        text = self.params.get(name, "")
        return split_values(text) if text else []

    def fields(self, *without: str) -> Iterator[tuple[str, str]]:
        """Yield the filters as hidden fields of a search form."""
        return ((name, text) for name, text in self.params.items() if text and name not in {*without, *_PLACE})
