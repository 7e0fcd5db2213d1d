"""What the workers deliver to, as processes of their own, and the files in which they record arrivals."""
