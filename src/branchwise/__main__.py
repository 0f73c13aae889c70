"""`python -m branchwise` is the command `branchwise`."""

from branchwise.cli import main

if __name__ == "__main__":
    main()
