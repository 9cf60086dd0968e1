"""What this machine and this install can do: ``zinf doctor``."""
