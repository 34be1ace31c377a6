"""One run of a study: the coordinator's loop and its decisions."""
