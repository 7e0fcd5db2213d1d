"""Keeps TLS secrets out of files: Python's ssl, urllib3 and what uses them write each session's keys to SSLKEYLOGFILE."""

import os


def disable() -> None:
    """Remove SSLKEYLOGFILE from this process and its children; call this before anything prepares TLS."""
    os.environ.pop("SSLKEYLOGFILE", None)
