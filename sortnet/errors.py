"""The errors that speak to the user, apart from those that are defects of this package."""

from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(ValueError):
    """What was asked for, or a file that was given, cannot be used; the message says why.

    It is a `ValueError`, so that ``except ValueError`` catches it. The command line prints its
    message as one line; any other `ValueError` is a defect and is shown with its traceback.
    """


class Damaged(ValueError):
    """A file does not hold what was written into it: a failure, and nobody's mistake."""


@contextmanager
def user_input() -> Iterator[None]:
    """Take a `ValueError` for the user's mistake.

    For calls whose only failures are refused arguments, such as building a network by its name.
    """
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
