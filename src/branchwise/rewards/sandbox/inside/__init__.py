"""What runs inside the sandbox: standard library only, and little of it, since every program pays the start."""
