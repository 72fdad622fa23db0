"""The one error a user can mend: what was given, and what would fit, in one line."""


class InputError(ValueError):
    """Bad input from outside: a file, a setting, a folder. The command line shows it as one line, exit 2."""
