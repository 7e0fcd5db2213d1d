"""Load generators: prepared requests over kept connections, and slow connections."""
