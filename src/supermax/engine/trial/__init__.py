"""One attempt at a trial: its outcome, and the fault it is classified as."""
