"""The asynchronous client; the blocking one in `_sync` is generated from it."""
