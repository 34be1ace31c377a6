"""Synthetic data, one generator for each kind of labels.

posts     symptoms in posts, with evidence: classes and spans
ratings   numbers
requests  sets of labels
entities  entities
"""

from __future__ import annotations

from supermax.training.data.synthetic.entities import synthetic_entities
from supermax.training.data.synthetic.posts import synthetic
from supermax.training.data.synthetic.ratings import synthetic_ratings
from supermax.training.data.synthetic.requests import synthetic_requests

__all__ = ["synthetic", "synthetic_entities", "synthetic_ratings", "synthetic_requests"]
