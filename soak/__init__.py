"""A development tool that kills a real installation again and again, and counts what was lost. Loopback only."""
