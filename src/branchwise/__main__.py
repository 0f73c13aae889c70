"""`python -m branchwise`, as launchers of several processes start it, too."""

from branchwise.cli import main

main()
