"""Objectives that die in every way, to try one's own set-up with before the night it counts."""

from supermax.testing.villains import MOMENTS, VILLAINS, mischief

__all__ = ["MOMENTS", "VILLAINS", "mischief"]
