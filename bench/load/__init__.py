"""What a measurement sends: prepared requests, at a rate, on connections that are kept or slow."""
