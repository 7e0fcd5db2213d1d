"""Pages and forms of targets: the list, one target, adding, changing and removing."""
