"""Unpacking archives from elsewhere: regular files, inside the target folder, up to a size.

Python's own filters for this have been got round (CVE-2025-4517), so the paths are checked here.
"""

import lzma
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from tarfile import TarInfo
from typing import IO

from sortnet.lab.data.download import Show

MEMBERS = 100_000
"""The most files and folders of an archive; those of the data sets have 30,000."""
HEADER = 1 << 16
"""The most bytes of a long name or of other additions to a member's header."""
BROKEN = (
    *(tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, OverflowError, RecursionError, MemoryError),
)
"""What the reader raises at a file that is damaged or that was made to mislead it."""


class _Member(TarInfo):
    """A member whose header cannot take any amount of memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> TarInfo:
        """Called by `tarfile` with each header, before what it announces is read."""
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a file with holes")
        if not self.isreg() and self.size > HEADER:
            raise tarfile.ReadError("a header that is too long")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


def unpack(archive: Path, target: Path, most: int, show: Show) -> None:
    """Unpack a tar file; one that asks for anything odd is refused before a file is written.

    Arguments:
        archive: The file, compressed or not.
        target: The folder to unpack to.
        most: How many bytes may come out in all.
        show: Told about the progress.
    """
    try:
        with tarfile.open(archive, tarinfo=_Member) as tar:
            members = _harmless(tar, archive, target, most)
            done, total = 0, sum(member.size for member in members)
            for member in members:
                source = tar.extractfile(member)
                assert source is not None  # it is a regular file
                _write(source, target / member.name)
                done += member.size
                show(f"unpacking {archive.name}", done, total)
    except (*BROKEN, OSError) as error:
        if isinstance(error, OSError) and (error.errno is not None or str(archive) in str(error)):
            raise  # the disk, or what was refused here; a decompressor's names no file
        raise OSError(f"{archive} cannot be unpacked: it is not a whole tar file") from None


def _harmless(tar: tarfile.TarFile, archive: Path, target: Path, most: int) -> list[TarInfo]:
    members, total = [], 0
    for count, member in enumerate(tar, start=1):
        if count > MEMBERS:
            raise OSError(f"{archive} is hostile: it has more than {MEMBERS:,} members")
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
    if not member.isreg() or member.size < 0:
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
