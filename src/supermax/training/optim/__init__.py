"""Optimizers, schedules and losses, and the bf16 copies of the weights."""
