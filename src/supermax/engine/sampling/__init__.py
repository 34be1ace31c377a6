"""Samplers of a run: which trials they see, and their seeds."""
