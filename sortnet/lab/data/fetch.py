"""Downloading datasets from their official pages."""

from pathlib import Path

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab.data.archive import unpack
from sortnet.lab.data.download import OnProgress, download, file_md5, no_progress
from sortnet.lab.data.folders import find_caltech256
from sortnet.lab.data.sources import ELSEWHERE, SOURCES, Source
from sortnet.lab.data.verify import check


def get(name: str, root: str | Path, *, on_progress: OnProgress | None = None) -> Path:
    """Download a dataset from its official page, verify and unpack it; return the root.

    Files that are complete are not downloaded again, and an interrupted download resumes.

    Arguments:
        name: ``cifar10``, ``cifar100``, ``svhn`` or ``caltech256``.
        root: The folder to put it into.
        on_progress: Called with a description, the bytes done and the total (0 if unknown).
    """
    if name in ELSEWHERE:
        raise UsageError(ELSEWHERE[name])
    if name not in SOURCES:
        raise UsageError(f"{name!r} cannot be downloaded; only {', '.join(SOURCES)} can")
    root, on_progress = Path(root), on_progress or no_progress
    with files.locked(root / f".{name}.lock", f"downloading {name}"):
        if not _is_complete(name, root, on_progress):
            for source in SOURCES[name]:
                _fetch(source, root, on_progress)
    return root


def _is_complete(name: str, root: Path, on_progress: OnProgress) -> bool:
    try:
        if name != "caltech256":
            return not check(name, root, on_progress=on_progress)
        find_caltech256(root)
        return not any(root.glob(f"{SOURCES[name][0].name}*"))  # otherwise it is not unpacked yet
    except FileNotFoundError:
        return False


def _fetch(source: Source, root: Path, on_progress: OnProgress) -> None:
    target = root / source.name
    if not target.is_file() or file_md5(target, on_progress) != source.md5:
        download(source.url, target, source.md5, on_progress)
    if source.unpacked:
        unpack(target, root, source.unpacked, on_progress)
        target.unlink()
