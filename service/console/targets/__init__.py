"""Pages and forms of targets: list, show, add, change and remove them."""
