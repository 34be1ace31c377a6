"""Refit, export and prediction of the best model."""
