"""The one way a set-up ends early."""


class SetupError(Exception):
    """One line for the user: what is wrong and what to type."""
