"""The commands; each one's heavy imports happen when it runs."""
