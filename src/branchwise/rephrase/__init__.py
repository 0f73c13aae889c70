"""Rephrasings of questions: written by a model or by rules, checked, recorded, and never paid for twice."""
