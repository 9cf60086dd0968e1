"""Other programs that ours are compared with, where they are installed."""
