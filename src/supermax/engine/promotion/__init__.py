"""Trials that pause at rungs and continue from their checkpoints."""
