"""Predictions of learning curves from recorded ones, and of each configuration from the others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
from scipy.linalg import cho_solve  # type: ignore[import-untyped]
from scipy.stats import norm  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.preprocessing import QuantileTransformer


def _groups(points: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of each configuration: those of its seeds have the same place."""
    _, inverse = np.unique(points, axis=0, return_inverse=True)
    for i in range(inverse.max() + 1):
        yield np.flatnonzero(inverse == i)


class NearestNeighbour:
    """Curve of the nearest configuration, averaged over its seeds."""

    def __init__(self, points: np.ndarray, curves: np.ndarray) -> None:
        groups = list(_groups(points))
        self._points = np.array([points[rows[0]] for rows in groups])
        self._curves = np.array([curves[rows].mean(0) for rows in groups])
        self._rows = groups

    def predict(self, points: np.ndarray) -> np.ndarray:
        return self._nearest(self._distances(points))

    def left_out(self) -> np.ndarray:
        """Return the curve of each row, predicted from the other configurations."""
        distances = self._distances(self._points)
        np.fill_diagonal(distances, np.inf)
        found = np.empty((sum(map(len, self._rows)), self._curves.shape[1]))
        for rows, curve in zip(self._rows, self._nearest(distances), strict=True):
            found[rows] = curve
        return found

    def _distances(self, points: np.ndarray) -> np.ndarray:
        found: np.ndarray = ((points[:, None] - self._points[None]) ** 2).sum(-1)
        return found

    def _nearest(self, distances: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._curves[distances.argmin(1)]
        return found


class GaussianProcess:
    """Gaussian process with a length scale for each parameter, the same ones for all epochs.

    The values of an epoch are warped to a normal distribution by their ranks. Without this, the
    process goes far below the lowest recorded loss next to trainings that diverged.
    """

    def __init__(self, points: np.ndarray, curves: np.ndarray) -> None:
        self._points = points
        self._ranks = QuantileTransformer(n_quantiles=len(curves), output_distribution="normal")
        bound = norm.ppf(1 - 0.5 / len(curves))  # the extremes are finite
        self._warped = np.clip(self._ranks.fit_transform(curves), -bound, bound)
        kernel = ConstantKernel() * Matern(
            np.ones(points.shape[1]), (0.05, 30), nu=2.5
        ) + WhiteKernel(0.1, (1e-3, 1))
        self._process = GaussianProcessRegressor(kernel, random_state=0)
        with warnings.catch_warnings():  # a parameter without effect has a scale at its bound
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._process.fit(points, self._warped)

    def predict(self, points: np.ndarray) -> np.ndarray:
        curves: np.ndarray = self._ranks.inverse_transform(self._process.predict(points))
        return curves

    def left_out(self) -> np.ndarray:
        """Return the curve of each row, predicted from the other configurations. The length
        scales are those of all of them."""
        inverse = cho_solve((self._process.L_, True), np.eye(len(self._points)))
        weighted, found = inverse @ self._warped, np.empty_like(self._warped)
        for rows in _groups(self._points):
            own = inverse[np.ix_(rows, rows)]
            found[rows] = self._warped[rows] - np.linalg.solve(own, weighted[rows])
        curves: np.ndarray = self._ranks.inverse_transform(found)
        return curves
