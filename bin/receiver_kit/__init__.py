"""For authors of receivers: one to develop against, what a right one answers, why a signature does not hold."""
