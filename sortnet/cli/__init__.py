"""The command line: the only package that imports tyro.

Commands import what they need when they run, so that ``sortnet --help`` answers at once.
"""

import sys
from collections.abc import Callable, Sequence

import tyro

from sortnet import __version__
from sortnet.cli import compare, models, reproduce, train
from sortnet.errors import Damaged, UsageError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": compare.demo,
    "compare": compare.compare,
    "list": models.list_,
    "info": models.info,
    "train": train.train,
    "eval": train.eval_,
    "predict": train.predict,
    "data": train.data,
    "doctor": train.doctor,
    "sortify": models.sortify,
    "export": train.export,
    "transfer": reproduce.transfer,
    "reproduce": reproduce.reproduce,
    "claims": reproduce.claims,
    "bench": models.bench,
    "report": reproduce.report,
}


def overview() -> str:
    """Return what ``sortnet --help`` prints: one line per command."""
    lines = ["sortnet: second-order response fusion for PyTorch, the SORT paper as a tool", ""]
    for name, command in COMMANDS.items():
        summary = (command.__doc__ or "").partition("\n")[0]
        lines.append(f"  sortnet {name:<10} {summary}")
    lines += ["", "sortnet COMMAND --help shows the arguments of a command, with examples."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a usage error is one line and exit code 2, a failure one line and 1.

    A defect of this package is raised again: Python shows its traceback and exits with 1.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"sortnet {__version__}")
        return 0
    if arguments in ([], ["-h"], ["--help"]):
        print(overview())
        return 0
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="sortnet",
            description="Second-order response fusion for PyTorch: the SORT paper as a tool.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except UsageError as error:
        print(f"sortnet: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head or less, has closed the pipe
        sys.stdout = None
        return 0
    except KeyboardInterrupt:
        print("sortnet: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        code = _failure(error)
        if code is None:  # a defect: show the traceback
            raise
        print(f"sortnet: {error or 'there is not enough memory'}", file=sys.stderr)
        return code
    return 0


def _failure(error: Exception) -> int | None:
    """Return the exit code of a failure of the machine or the run; None for a defect."""
    if isinstance(error, OSError | MemoryError | Damaged):
        return 1
    from sortnet.lab.training import Diverged, Interrupted

    if isinstance(error, Interrupted):
        return 128 + error.number
    return 1 if isinstance(error, Diverged) else None
