"""Processes of a run: supervisor, fork server and cells, and the sockets between them."""
