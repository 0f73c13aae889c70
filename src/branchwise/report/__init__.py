"""The report: one self-contained page with a run's numbers, curves and trees (`page.py`), and its live form."""
