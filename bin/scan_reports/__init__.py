"""Reports of scanners that people already run, as postbacks: one module a format, pure, from bytes to values."""
