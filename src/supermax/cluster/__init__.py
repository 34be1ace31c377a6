"""Runs on a cluster: job arrays of Slurm, and a database server without root."""
