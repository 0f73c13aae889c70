"""Untrusted programs, run where they can reach nothing."""

from branchwise.rewards.sandbox.isolation import Isolation, open_isolation
from branchwise.rewards.sandbox.limits import Limits

__all__ = ["Isolation", "Limits", "open_isolation"]
