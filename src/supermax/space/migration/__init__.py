"""Versions of a study whose space changes, and the trials that are carried over."""
