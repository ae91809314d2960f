"""Safe unpacking of tar files: regular files only, inside the target folder, up to a size.

Python's own filters can be bypassed (CVE-2025-4517), so paths are checked here.
"""

import lzma
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from tarfile import TarInfo
from typing import IO

from sortnet.lab.data.download import OnProgress

MEMBERS = 100_000
"""Largest number of files and folders; the datasets' archives have up to 30,000."""
HEADER = 1 << 16
"""Largest size of a member's extended header in bytes."""
BROKEN = (
    *(tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, OverflowError, RecursionError, MemoryError),
)
"""Errors of `tarfile` on damaged or malicious files."""


class _Member(TarInfo):
    """A member whose header has a limited size."""

    def _proc_member(self, tar: tarfile.TarFile) -> TarInfo:
        """Check a header before `tarfile` reads the data it announces."""
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a file with holes")
        if not self.isreg() and self.size > HEADER:
            raise tarfile.ReadError("a header that is too long")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


def unpack(archive: Path, target: Path, most: int, on_progress: OnProgress) -> None:
    """Unpack a tar file. A suspicious one is refused before anything is written.

    Arguments:
        archive: The file, compressed or not.
        target: The folder to unpack to.
        most: Largest total size in bytes.
        on_progress: Called with the progress.
    """
    try:
        with tarfile.open(archive, tarinfo=_Member) as tar:
            members = _checked_members(tar, archive, target, most)
            done, total = 0, sum(member.size for member in members)
            for member in members:
                source = tar.extractfile(member)
                assert source is not None  # it is a regular file
                _write(source, target / member.name)
                done += member.size
                on_progress(f"unpacking {archive.name}", done, total)
    except (*BROKEN, OSError) as error:
        if isinstance(error, OSError) and (error.errno is not None or str(archive) in str(error)):
            raise  # the disk, or a refusal of ours; errors of a decompressor name no file
        raise OSError(f"{archive} cannot be unpacked: it is not a complete tar file") from None


def _checked_members(
    tar: tarfile.TarFile, archive: Path, target: Path, most: int
) -> list[TarInfo]:
    members, total = [], 0
    for count, member in enumerate(tar, start=1):
        if count > MEMBERS:
            raise OSError(f"{archive} was refused: it has more than {MEMBERS:,} members")
        if member.isdir():
            continue
        _check_member(archive, member, target)
        total += member.size
        if total > most:
            raise OSError(f"{archive} would unpack to more than the {most:,} bytes allowed")
        members.append(member)
    return members


def _check_member(archive: Path, member: TarInfo, target: Path) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or not path.parts:
        raise OSError(f"{archive} was refused: {member.name!r} is outside of its folder")
    if not member.isreg() or member.size < 0:
        raise OSError(f"{archive} was refused: {member.name!r} is not a regular file")
    # An existing symbolic link could still lead outside.
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
