"""Settings: their definitions, their parsers, the URL of Redis."""
