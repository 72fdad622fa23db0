"""The one error a user can mend: what was given, and what would fit, in one line."""


class InputError(ValueError):
    """Bad input from outside: a file, a setting, a folder. The command line shows it as one line, exit 2."""


def first_line(error: Exception) -> str:
    """What an error says, on one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
