"""Hyperparameter search of an agent: settings, plan, run; checks, cleanup and replay."""
