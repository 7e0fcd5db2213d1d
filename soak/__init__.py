"""Development tool: kills processes of a real installation repeatedly and counts lost data. Loopback only."""
