"""What the backend decided and what it did, for people to read."""
