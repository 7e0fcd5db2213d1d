"""Issue trackers as targets: the requests to each, and the meaning of its responses; pure, a worker sends the requests."""
