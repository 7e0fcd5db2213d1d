"""Reports optional packages that a setting needs and that are not installed, before anything starts."""

from importlib.util import find_spec
from typing import Final

from schemas.settings.definitions import Settings

_OTLP: Final = "opentelemetry.exporter.otlp.proto.http"


def missing(settings: Settings) -> dict[str, list[str]]:
    """Return the problems of settings whose package is not installed, in the form that `InvalidSettings` takes."""
    needed = {
        "SENTRY_DSN": (settings.sentry_dsn, "sentry_sdk", "sentry-sdk"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": (settings.otlp_endpoint, _OTLP, "opentelemetry-exporter-otlp-proto-http"),
    }
    return {
        name: [f"Needs the package {package}, which is not installed; run: make setup EXTRAS=1"]
        for name, (value, module, package) in needed.items()
        if value is not None and not _is_installed(module)
    }


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # A parent package is missing.
        return False
