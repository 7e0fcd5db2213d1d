"""Packages that a setting asks for and a plain set-up leaves out: told before anything starts, never silently left off."""

from importlib.util import find_spec
from typing import Final

from schemas.settings.definitions import Settings

#: setting -> the module that must be there, and the package that brings it.
_NEEDED: Final = {
    "SENTRY_DSN": ("sentry_sdk", "sentry-sdk"),
    "OTEL_EXPORTER_OTLP_ENDPOINT": (
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry-exporter-otlp-proto-http",
    ),
}


def missing(settings: Settings) -> dict[str, list[str]]:
    """Return what is wrong with each setting whose package is not installed, as `InvalidSettings` takes it."""
    values = {"SENTRY_DSN": settings.sentry_dsn, "OTEL_EXPORTER_OTLP_ENDPOINT": settings.otlp_endpoint}
    return {
        name: [f"It needs the package {package}, which is not installed; run: make setup EXTRAS=1"]
        for name, (module, package) in _NEEDED.items()
        if values[name] is not None and not _is_there(module)
    }


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # A package above it is missing.
        return False
