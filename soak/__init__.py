"""Development tool: kills processes of a real installation repeatedly and checks that no data is lost. Loopback only."""
