"""Errors with a message for the user, as opposed to defects of this package."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

LAB = ("torchvision", "numpy", "PIL", "scipy", "sklearn", "matplotlib", "tyro", "rich", "filelock")
"""The packages of the extra ``lab``, by the names they are imported by."""


class UsageError(ValueError):
    """An argument or a given file cannot be used; the message says why.

    It is a `ValueError`, so that ``except ValueError`` catches it. The command line prints its
    message as one line; any other `ValueError` is a defect and is shown with its traceback.
    """


class Damaged(ValueError):
    """A file does not contain what was written to it. This is a failure, not a usage error."""


class MissingExtra(ImportError):
    """A package of the extra ``lab`` is not installed."""


def require_lab() -> None:
    """Raise unless the packages of the extra ``lab`` are installed."""
    if missing := [name for name in LAB if find_spec(name) is None]:
        raise MissingExtra(
            f"this needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not"
            ' installed: pip install "sortnet[lab]"'
        )


@contextmanager
def user_input() -> Iterator[None]:
    """Turn a `ValueError` into a `UsageError`.

    For calls that raise `ValueError` only for wrong arguments, such as `sortnet.create_model`.
    """
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
