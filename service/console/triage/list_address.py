"""The address of a list, which contains its filters, order, page and open ticket; links and forms of the page keep it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from schemas.triage.export_filter import join_values, split_values

#: Parameters of a position in a list. They are dropped with a change of filter or order, which begins at the first page.
_POSITION: Final = ("cursor", "export")


@dataclass(frozen=True, slots=True)
class ListAddress:
    """A list's path, relative to the console, and its parameters; empty values are omitted."""

    path: str
    params: Mapping[str, str]

    def href(self, **changes: str | None) -> str:
        """Return the address with changed parameters; None removes a parameter. All other parameters stay."""
        kept = {name: text for name, text in {**self.params, **changes}.items() if text}
        # Commas between values are not encoded, to keep the address readable.
        return f"{self.path}?{urlencode(kept, safe=',')}" if kept else self.path

    def filtered(self, **changes: str | None) -> str:
        """Return the address of the first page with changed filters."""
        return self.href(**dict.fromkeys(_POSITION), **changes)

    def toggled(self, name: str, value: str) -> str:
        """Return the address with a value added to a filter that allows several values, or removed if it is there."""
        chosen = self.values(name)
        left = [each for each in chosen if each != value] if value in chosen else [*chosen, value]
        return self.filtered(**{name: join_values(left)})

    def values(self, name: str) -> list[str]:
        """Return the values of a filter."""
        text = self.params.get(name, "")
        return split_values(text) if text else []

    def fields(self, *without: str) -> Iterator[tuple[str, str]]:
        """Yield the filters as names and values of hidden fields, except those in `without`."""
        return ((name, text) for name, text in self.params.items() if text and name not in {*without, *_POSITION})
