"""The beta distribution against scipy, which is here for development only."""

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from trimaran_client.policies.beta import beta_cdf, fit_beta


@given(st.floats(-3, 6), st.floats(-3, 6), st.floats(-6, 6))
def test_agrees_with_scipy(log_alpha: float, log_beta: float, deviations: float) -> None:
    """Parameters from 0.001 to a million, at points up to six deviations from the mean."""
    alpha, beta = np.array([10**log_alpha]), np.array([10**log_beta])
    total = alpha + beta
    x = np.clip(alpha / total + deviations * np.sqrt(alpha * beta / (total**2 * (total + 1))), 0.0, 1.0)
    ours, theirs = beta_cdf(alpha, beta, x)[0], scipy.special.betainc(alpha, beta, x)[0]
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@given(st.floats(0.001, 0.999), st.floats(1e-6, 0.4))
def test_a_fit_has_the_moments_it_was_made_from(mean: float, deviation: float) -> None:
    alpha, beta = fit_beta(np.array([mean]), np.array([deviation]))
    if deviation**2 >= mean * (1 - mean):
        assert np.isnan(alpha[0])
        return
    total = alpha + beta
    assert alpha / total == pytest.approx([mean])
    assert np.sqrt(alpha * beta / (total**2 * (total + 1))) == pytest.approx([deviation], rel=1e-6)


def test_a_column_equals_its_rows_one_by_one() -> None:
    """Small, large and mixed parameters in one column take different ways to the same values."""
    alpha = np.array([0.5, 2.0, 5000.0, 1e6, 3.0, 4e5])
    beta = np.array([0.5, 3.0, 9000.0, 1e6, 1e6, 2.0])
    x = np.array([0.3, 0.9, 0.36, 0.4999, 2e-6, 0.99999])
    together = beta_cdf(alpha, beta, x)
    assert together.tolist() == [beta_cdf(alpha[i : i + 1], beta[i : i + 1], x[i : i + 1])[0] for i in range(len(x))]


def test_the_ends_and_what_is_no_distribution() -> None:
    alpha = np.array([2.0, 2.0, 2.0, 2.0, np.nan, 0.0, -1.0, 2.0])
    x = np.array([0.0, 1.0, -5.0, 7.0, 0.5, 0.5, 0.5, np.nan])
    values = beta_cdf(alpha, np.full(8, 3.0), x)
    assert values[:4].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert np.isnan(values[4:]).all()
