"""Getting data sets from their official pages."""

import shutil
from pathlib import Path

from sortnet import files
from sortnet.errors import UsageError
from sortnet.lab.data import npm
from sortnet.lab.data.archive import unpack
from sortnet.lab.data.download import Show, UnreachableError, download, file_md5, quietly
from sortnet.lab.data.folders import find_caltech256
from sortnet.lab.data.sources import ELSEWHERE, SOURCES, Source
from sortnet.lab.data.verify import check


def get(name: str, root: str | Path, *, show: Show | None = None) -> Path:
    """Download a data set from its official page, verify and unpack it; the root is returned.

    What is there already and right is not downloaded again, and an interrupted download goes on
    where it stopped.

    Arguments:
        name: ``cifar10``, ``cifar100``, ``svhn`` or ``caltech256``.
        root: The folder to put it into.
        show: Called with what is going on, how far it is and how far it goes (0: not known).
    """
    if name in ELSEWHERE:
        raise UsageError(ELSEWHERE[name])
    if name not in SOURCES:
        raise UsageError(f"{name!r} cannot be downloaded; only {', '.join(SOURCES)} can")
    root, show = Path(root), show or quietly
    with files.locked(root / f".{name}.lock", f"downloading {name}"):
        if not _there(name, root, show):
            try:
                for source in SOURCES[name]:
                    _fetch(source, root, show)
            except UnreachableError:
                if name != "cifar10" or shutil.which("npm") is None:
                    raise
                npm.fetch_cifar10(root, show)
                (root / f"{SOURCES[name][0].name}.part").unlink(missing_ok=True)
    return root


def _there(name: str, root: Path, show: Show) -> bool:
    try:
        if name != "caltech256":
            return not check(name, root, show=show)
        find_caltech256(root)
        return not any(root.glob(f"{SOURCES[name][0].name}*"))  # else it is not all unpacked
    except FileNotFoundError:
        return False


def _fetch(source: Source, root: Path, show: Show) -> None:
    target = root / source.name
    if not target.is_file() or file_md5(target, show) != source.md5:
        download(source.url, target, source.md5, show)
    if source.unpacked:
        unpack(target, root, source.unpacked, show)
        target.unlink()
