"""The agents: what is trained in a trial, what it is judged by, what of it is kept."""
