"""A development tool that measures this machine and this checkout. Loopback only; RiskRelay runs without it."""
