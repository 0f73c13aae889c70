"""`python -m branchwise` is the command `branchwise`; launchers of several processes start it so."""

from branchwise.cli import main

if __name__ == "__main__":
    main()
