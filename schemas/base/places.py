"""The places of a ticket's findings; all texts are untrusted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding is: the URL of its page and the location on it."""

    url: str
    location: str

    def record(self) -> dict[str, str]:
        """Return the place as JSON."""
        return {"url": self.url, "location": self.location}


@dataclass(frozen=True, slots=True)
class ChangedPlace:
    """A place that changed: `state` is `open` or `fixed`."""

    url: str
    location: str
    state: str
