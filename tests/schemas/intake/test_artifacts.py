"""A scanner's path becomes a URL below the configured base URL, or remains text."""

import pytest

from schemas.intake.artifacts import artifact_url

BASE = "https://artifacts.example.com/scans"

#: Columns: a path from a scanner; its URL.
BELOW = [
    ("42/home.png", f"{BASE}/42/home.png"),
    ("/42/home.png", f"{BASE}/42/home.png"),
    ("42/home page é.png", f"{BASE}/42/home%20page%20%C3%A9.png"),
    ("42/a?b#c%2e.png", f"{BASE}/42/a%3Fb%23c%252e.png"),
    ("42/..hidden/...", f"{BASE}/42/..hidden/..."),
    ("user@evil.example:80", f"{BASE}/user%40evil.example%3A80"),
    ("javascript:alert(1)", f"{BASE}/javascript%3Aalert%281%29"),
]
#: Paths that remain text.
TEXT = [
    *(None, "", "/", "..", "../secret.png", "42/../../secret.png", "42/./home.png", "42//home.png", "//evil.example/x"),
    *(
        "https://evil.example/x.png",
        "javascript://evil.example/%0aalert(1)",
        "..\\secret.png",
        "42/home\n.png",
        "42/\u202egnp.x",
    ),
]


@pytest.mark.parametrize(("path", "url"), BELOW)
def test_a_path_is_joined_to_the_base_and_quoted(path: str, url: str) -> None:
    assert artifact_url(BASE, path) == artifact_url(f"{BASE}/", path) == url


@pytest.mark.parametrize("path", TEXT)
def test_a_path_that_could_lead_elsewhere_stays_text(path: str | None) -> None:
    assert artifact_url(BASE, path) is None


def test_without_a_base_every_path_stays_text() -> None:
    assert artifact_url("", "42/home.png") is None
