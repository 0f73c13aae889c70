"""How noisy are thoughts' advantages when each value is a mean of M answers?"""

from __future__ import annotations

import numpy as np


def advantage_variance(values_K: np.ndarray, sigma2_K: np.ndarray, M: int, ddof: int = 1) -> np.ndarray:
    """Var(A_i) of each thought's group-scaled advantage (eps 0), to first order in 1/M (GRPO-MA, arXiv 2509.24494) [K].

        Var(A_i) ≈ 1/(M·S²) · Σ_k (δ_ik − 1/K − A_i·A_k/(K − ddof))² · σ_k²

    Raising M drives it to 0; raising K leaves σ²/(M·S²).

    Args:
        values_K: the thoughts' true values, not all equal.
        sigma2_K: σ_k², the variance of an answer's reward within each thought.
        M: answers sampled from each thought.
        ddof: of the std S.
    """
    K = len(values_K)
    S = values_K.std(ddof=ddof)
    A_K = (values_K - values_K.mean()) / S
    derivative_KK = np.eye(K) - 1 / K - np.outer(A_K, A_K) / (K - ddof)
    return derivative_KK**2 @ sigma2_K / (M * S**2)
