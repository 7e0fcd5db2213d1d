"""Commands that need no installation: a receiver, requests to one, an import, a demo, completion."""
