"""Hyperparameter search of a task: settings, plan, run; checks, cleanup and replay."""
