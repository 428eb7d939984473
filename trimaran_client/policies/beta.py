"""
The beta distribution over columns: parameters from moments, and its cumulative distribution.

scipy is too heavy for one function (165 MB, a second to import), so the regularised incomplete beta function is ours; the tests hold it to
scipy's values. Knows no pods and no nodes.

Source: the continued fraction and its symmetry are DLMF 8.17.22 and 8.17.4; the density in saddle-point form is C. Loader, "Fast and
Accurate Computation of Binomial Probabilities" (2000), which keeps its digits where differences of log-gamma values lose them.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from trimaran_client.units import FloatArray

# The continued fraction takes about the square root of the smaller parameter in steps; where both are larger than this the density is
# smooth, and integrating it is cheaper and as exact.
_MAX_FRACTION_PARAMETER = 3000.0
_MAX_FRACTION_STEPS = 2000
_PRECISION = 1e-16
_TINY = 1e-300
# How far from the mean, in standard deviations, the density still matters: exp(-38**2 / 2) is about the smallest double.
_TAIL_DEVIATIONS = 38.0
_PANELS = 6
# From here the Stirling series below is exact to the last digit; its terms are DLMF 5.11.1.
_STIRLING_FROM = 16.0
_STIRLING_TERMS = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

_lgamma = np.frompyfunc(math.lgamma, 1, 1)


def fit_beta(mean: FloatArray, deviation: FloatArray) -> tuple[FloatArray, FloatArray]:
    """
    Match a beta distribution to a mean and a standard deviation.

    Args:
        mean: In [0, 1], shape (n,).
        deviation: At least 0, shape (n,).

    Returns:
        Alpha and beta, shape (n,) each; NaN where no beta distribution has these moments.
    """
    variance = deviation * deviation
    with np.errstate(all="ignore"):
        total = mean * (1.0 - mean) / variance - 1.0
        fits = (mean > 0) & (mean < 1) & (variance > 0) & (total > 0) & np.isfinite(total)
        return np.where(fits, mean * total, math.nan), np.where(fits, (1.0 - mean) * total, math.nan)


def beta_cdf(alpha: FloatArray, beta: FloatArray, x: FloatArray) -> FloatArray:
    """
    Compute the probability that a beta variable is at most *x*: the regularised incomplete beta function.

    Args:
        alpha: Above 0, shape (n,).
        beta: Above 0, shape (n,).
        x: Any number, shape (n,); below 0 gives 0, above 1 gives 1.

    Returns:
        Probabilities, shape (n,), to about 1e-12; NaN where a parameter is NaN or not above 0.

    >>> beta_cdf(np.array([2.0]), np.array([2.0]), np.array([0.5]))
    array([0.5])
    """
    alpha, beta, x = np.broadcast_arrays(np.asarray(alpha, float), np.asarray(beta, float), np.asarray(x, float))
    result = np.where(x >= 1.0, 1.0, 0.0)
    valid = (alpha > 0) & (beta > 0) & np.isfinite(alpha) & np.isfinite(beta) & ~np.isnan(x)
    result[~valid] = math.nan
    rows = np.flatnonzero(valid & (x > 0) & (x < 1))
    if len(rows):
        result[rows] = _lower_or_upper(alpha[rows], beta[rows], x[rows])
    return result


def _lower_or_upper(alpha: FloatArray, beta: FloatArray, x: FloatArray) -> FloatArray:
    """Compute whichever of the two tails converges fast, and turn the upper one into the lower one."""
    flip = x > (alpha + 1.0) / (alpha + beta + 2.0)
    a, b = np.where(flip, beta, alpha), np.where(flip, alpha, beta)
    near, far = np.where(flip, 1.0 - x, x), np.where(flip, x, 1.0 - x)
    tail = np.empty_like(x)
    smooth = np.minimum(a, b) > _MAX_FRACTION_PARAMETER
    for rows, compute in ((~smooth, _fraction_tail), (smooth, _integral_tail)):
        if rows.any():
            tail[rows] = compute(a[rows], b[rows], near[rows], far[rows])
    return np.where(flip, 1.0 - tail, tail)


def _fraction_tail(a: FloatArray, b: FloatArray, x: FloatArray, one_minus_x: FloatArray) -> FloatArray:
    """Evaluate the continued fraction by the modified Lentz method; rows that have converged leave the loop."""
    result = _density_factor(a, b, x, one_minus_x) / a
    rows = np.arange(len(x))
    c = np.ones_like(x)
    d = _reciprocal(1.0 - (a + b) * x / (a + 1.0))
    value = d.copy()
    fraction = np.empty_like(x)
    for step in range(1, _MAX_FRACTION_STEPS):
        even = step * (b - step) * x / ((a + 2 * step - 1.0) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1.0))
        change = np.ones_like(x)
        for numerator in (even, odd):
            d = _reciprocal(1.0 + numerator * d)
            c = _away_from_zero(1.0 + numerator / c)
            change = c * d
            value = value * change
        going_on = np.abs(change - 1.0) > _PRECISION
        fraction[rows] = value
        if not going_on.any():
            break
        rows = rows[going_on]
        a, b, x, c, d, value = (each[going_on] for each in (a, b, x, c, d, value))
    return np.clip(result * fraction, 0.0, 1.0)


def _integral_tail(a: FloatArray, b: FloatArray, x: FloatArray, one_minus_x: FloatArray) -> FloatArray:
    """Integrate the density from where it vanishes up to *x*, by the rule of Gauss and Legendre on a few panels."""
    total = a + b
    deviation = np.sqrt(a * b / (total * total * (total + 1.0)))
    start = np.clip(a / total - _TAIL_DEVIATIONS * deviation, 0.0, x)
    points, weights = _gauss_legendre()
    a, b, x, one_minus_x, width = (each[:, np.newaxis] for each in (a, b, x, one_minus_x, (x - start) / _PANELS))
    tail = np.zeros(len(start))
    for panel in range(_PANELS):
        distance = width * (_PANELS - panel - (points + 1.0) / 2)
        t, one_minus_t = x - distance, one_minus_x + distance
        inside = t > 0
        density = _density_factor(a, b, np.where(inside, t, 0.5), np.where(inside, one_minus_t, 0.5))
        tail += np.where(inside, weights / 2 * width * density / np.where(inside, t * one_minus_t, 1.0), 0.0).sum(axis=1)
    return np.clip(tail, 0.0, 1.0)


@functools.cache
def _gauss_legendre() -> tuple[FloatArray, FloatArray]:
    """Answer points and weights on [-1, 1]; not at import, since numpy.polynomial takes longer to load than most of this library."""
    points, weights = np.polynomial.legendre.leggauss(24)
    return points, weights


def _density_factor(a: FloatArray, b: FloatArray, x: FloatArray, one_minus_x: FloatArray) -> FloatArray:
    """Compute x**a * (1 - x)**b / B(a, b) without the cancellation of log-gamma values."""
    total = a + b
    # How far a is from its share of the total, from whichever of x and 1 - x is exact.
    excess = np.where(x <= one_minus_x, a - total * x, total * one_minus_x - b)
    exponent = (
        _stirling_error(total)
        - _stirling_error(a)
        - _stirling_error(b)
        - _deviance(a, total * x, excess)
        - _deviance(b, total * one_minus_x, -excess)
    )
    return np.sqrt(a * b / (2 * math.pi * total)) * np.exp(exponent)


def _stirling_error(z: FloatArray) -> FloatArray:
    """Compute log Γ(z) - (z - 1/2) log z + z - log(2π)/2."""
    large = np.maximum(z, _STIRLING_FROM)
    squared = 1.0 / (large * large)
    series = np.zeros_like(z)
    for term in reversed(_STIRLING_TERMS):
        series = series * squared + term
    error = series / large
    small = z < _STIRLING_FROM
    if small.any():
        few = z[small]
        error[small] = np.asarray(_lgamma(few), dtype=np.float64) - (few - 0.5) * np.log(few) + few - _HALF_LOG_TWO_PI
    return error


def _deviance(value: FloatArray, expected: FloatArray, excess: FloatArray) -> FloatArray:
    """Compute value * log(value / expected) - excess, where excess = value - expected; the terms nearly cancel where that is small."""
    ratio = excess / (value + expected)
    squared = ratio * ratio
    series = np.zeros_like(squared)
    for power in range(9, 0, -1):
        series = (series + 1.0 / (2 * power + 1)) * squared
    close = excess * ratio + 2 * value * ratio * series
    with np.errstate(all="ignore"):
        apart = value * np.log(value / expected) - excess
    return np.where(np.abs(ratio) < 0.1, close, apart)


def _away_from_zero(values: FloatArray) -> FloatArray:
    return np.where(np.abs(values) < _TINY, _TINY, values)


def _reciprocal(values: FloatArray) -> FloatArray:
    return 1.0 / _away_from_zero(values)
