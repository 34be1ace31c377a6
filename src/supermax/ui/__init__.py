"""User interface: the command line and the progress display of a run."""
