"""Reports optional packages that a setting needs and that are not installed, before anything starts."""

from importlib.util import find_spec
from typing import Final

from schemas.settings.definitions import Settings

#: setting -> the module that is needed, and its package.
_NEEDED: Final = {
    "SENTRY_DSN": ("sentry_sdk", "sentry-sdk"),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"),
}


def missing(settings: Settings) -> dict[str, list[str]]:
    """Return the problems of settings whose package is not installed, in the form that `InvalidSettings` takes."""
    values = {"SENTRY_DSN": settings.sentry_dsn, "OTEL_EXPORTER_OTLP_ENDPOINT": settings.otlp_endpoint}
    return {
        name: [f"Needs the package {package}, which is not installed; run: make setup EXTRAS=1"]
        for name, (module, package) in _NEEDED.items()
        if values[name] is not None and not _is_there(module)
    }


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # A parent package is missing.
        return False
