"""What a leaf is paid: the built-in rewards, and the runner that calls these and yours."""

from branchwise.rewards.run import RewardError, RewardRunner

__all__ = ["RewardError", "RewardRunner"]
