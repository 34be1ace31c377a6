"""Helpers without dependencies: text, files, YAML with lines, attribute names, operating
system."""
