"""Persistence of a run: Optuna's storage and the run folder."""
