"""Reports of scanners that people already run, as postbacks, and what posts them.

One module a format, pure, from bytes to values; `sender` alone asks anybody.
"""
