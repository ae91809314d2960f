"""Unpacking archives from elsewhere: regular files, inside the target folder, up to a size.

Python's own filters for this have been got round (CVE-2025-4517), so the paths are checked here.
"""

import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from tarfile import TarInfo
from typing import IO

from sortnet.data.download import Show


def unpack(archive: Path, target: Path, most: int, show: Show) -> None:
    """Unpack a tar file; one that asks for anything odd is refused before a file is written.

    Arguments:
        archive: The file, compressed or not.
        target: The folder to unpack to.
        most: How many bytes may come out in all.
        show: Told about the progress.
    """
    try:
        with tarfile.open(archive) as tar:
            members = _harmless(tar, archive, target, most)
            done, total = 0, sum(member.size for member in members)
            for member in members:
                source = tar.extractfile(member)
                assert source is not None  # it is a regular file
                _write(source, target / member.name)
                done += member.size
                show(f"unpacking {archive.name}", done, total)
    except (tarfile.TarError, EOFError, zlib.error):
        raise OSError(f"{archive} cannot be unpacked: it is not a whole tar file") from None


def _harmless(tar: tarfile.TarFile, archive: Path, target: Path, most: int) -> list[TarInfo]:
    members, total = [], 0
    for member in tar:
        if member.isdir():
            continue
        _refuse_odd(archive, member, target)
        total += member.size
        if total > most:
            raise OSError(f"{archive} would unpack to more than the {most:,} bytes allowed")
        members.append(member)
    return members


def _refuse_odd(archive: Path, member: TarInfo, target: Path) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or not path.parts:
        raise OSError(f"{archive} is hostile: {member.name!r} lies outside of its folder")
    if not member.isreg():
        raise OSError(f"{archive} is hostile: {member.name!r} is not a plain file")
    # A link that was there before could still lead out.
    if not (target / path).resolve().is_relative_to(target.resolve()):
        raise OSError(f"{archive} would write to {(target / path).resolve()}; remove that link")


def _write(source: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
