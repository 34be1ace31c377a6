"""Readers of all formats of data: a path or an object becomes rows with their places."""
