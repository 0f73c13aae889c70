"""What runs inside the sandbox: standard library only, and few modules of it, since a start is paid by every program."""
