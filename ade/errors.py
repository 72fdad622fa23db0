"""InputError: wrong input, with a message of one line that says what was given and what would fit."""


class InputError(ValueError):
    """A file, setting or folder cannot be used. The command line shows the message and exits with status 2."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class where the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]
