"""Untrusted programs, run where they can reach nothing."""
