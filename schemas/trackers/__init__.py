"""Issue trackers as targets: for each its requests and what its responses mean; pure, a worker sends the requests."""
