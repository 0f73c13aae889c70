"""What a machine has, whether a run fits it, and what to change where it does not."""
