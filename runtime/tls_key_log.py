"""Keeps TLS secrets out of files: Python's ssl and urllib3 write the keys of each session to SSLKEYLOGFILE."""

import os


def disable() -> None:
    """Remove SSLKEYLOGFILE from this process and its children; call this before anything prepares TLS."""
    os.environ.pop("SSLKEYLOGFILE", None)
