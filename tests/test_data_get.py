"""Downloads from a real server that breaks off, lies or sends hostile archives."""

import bz2
import hashlib
import http.client
import io
import lzma
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from sortnet.lab import data
from sortnet.lab.data import cifar, download, svhn
from sortnet.lab.data.archive import unpack
from sortnet.lab.data.sources import SOURCES, Source

COUNT = 4
FOLDER = "cifar-100-binary"


@dataclass
class Site:
    """What a server has, and how it behaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    limit: int | None = None
    """After so many bytes of an answer the connection ends."""
    ranges: bool = True
    asked: list[str | None] = field(default_factory=list)
    """The ranges that were asked for."""
    url: str = ""


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append(wanted)
            content = site.files.get(self.path)
            if content is None:
                return self.send_error(404)
            begin = int(wanted[6:-1]) if wanted and site.ranges else 0
            if begin and begin >= len(content):
                return self.send_error(416)
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header(
                    "Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}"
                )
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            with suppress(ConnectionError):  # the client may have seen enough
                self.wfile.write(content[begin:][: site.limit])
            return None

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(download, "PAUSE", 0.0)
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(site))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def tarball(members: dict[str, bytes], mode: Literal["w", "w:gz"] = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def published(site: Site, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A small CIFAR-100 on the server, with its checksum on our list."""
    layout = cifar.LAYOUTS["cifar100"]
    small = replace(layout, train={"train.bin": COUNT}, test={"test.bin": COUNT})
    monkeypatch.setitem(cifar.LAYOUTS, "cifar100", small)
    rows = np.random.default_rng(0).integers(0, 100, (2, COUNT, 3074), dtype=np.uint8)
    names = (f"{FOLDER}/train.bin", f"{FOLDER}/test.bin")
    content = tarball({name: part.tobytes() for name, part in zip(names, rows, strict=True)})
    site.files["/cifar-100-binary.tar.gz"] = content
    source = Source(f"{site.url}/cifar-100-binary.tar.gz", md5(content), 1 << 20)
    monkeypatch.setitem(SOURCES, "cifar100", (source,))
    return content


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.mark.usefixtures("published")
def test_get_downloads_unpacks_and_is_done(tmp_path: Path, site: Site) -> None:
    seen: list[tuple[str, int, int]] = []
    assert data.get("cifar100", tmp_path, on_progress=lambda *step: seen.append(step)) == tmp_path
    assert len(data.load("cifar100", tmp_path).train) == COUNT
    assert {what.split()[0] for what, _, _ in seen} == {"downloading", "checking", "unpacking"}
    assert all(0 < done <= total for _, done, total in seen)
    data.get("cifar100", tmp_path)
    assert len(site.asked) == 1
    assert {path.name for path in tmp_path.iterdir()} == {FOLDER, ".cifar100.lock"}
    (tmp_path / FOLDER / "test.bin").unlink()
    data.get("cifar100", tmp_path)
    assert data.check("cifar100", tmp_path) == []


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_goes_on_where_it_stopped(
    tmp_path: Path, site: Site, published: bytes, ranges: bool
) -> None:
    site.limit, site.ranges = len(published) // 3, ranges
    if ranges:
        data.get("cifar100", tmp_path)
        assert site.asked[:2] == [None, f"bytes={site.limit}-"]
    else:
        with pytest.raises(OSError, match=r"bytes are kept, run the same command again"):
            data.get("cifar100", tmp_path)
        site.limit = None
        data.get("cifar100", tmp_path)
    assert data.check("cifar100", tmp_path) == []


def test_another_run_goes_on_where_one_stopped(
    tmp_path: Path, site: Site, published: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TRIES", 1)
    site.limit = 1000
    with pytest.raises(OSError, match="1,000 bytes are kept"):
        data.get("cifar100", tmp_path)
    assert (tmp_path / "cifar-100-binary.tar.gz.part").read_bytes() == published[:1000]
    site.limit = None
    data.get("cifar100", tmp_path)
    assert site.asked == [None, "bytes=1000-"]
    assert data.check("cifar100", tmp_path) == []


def test_all_there_but_the_last_step(tmp_path: Path, site: Site, published: bytes) -> None:
    (tmp_path / "cifar-100-binary.tar.gz.part").write_bytes(published)
    data.get("cifar100", tmp_path)
    assert site.asked == [f"bytes={len(published)}-"]
    assert data.check("cifar100", tmp_path) == []


def test_another_file_than_the_published_one_is_refused(
    tmp_path: Path, site: Site, published: bytes
) -> None:
    site.files["/cifar-100-binary.tar.gz"] = published[:-1] + b"?"
    with pytest.raises(OSError, match="MD5 differs"):
        data.get("cifar100", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".cifar100.lock"]


@pytest.mark.usefixtures("published")
def test_a_missing_page_is_one_line(tmp_path: Path, site: Site) -> None:
    site.files.clear()
    with pytest.raises(OSError, match=r"cifar-100-binary.tar.gz cannot be .*Not Found") as caught:
        data.get("cifar100", tmp_path)
    assert "\n" not in str(caught.value)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        good = tarfile.TarInfo("good.bin")
        good.size = 3
        tar.addfile(good, io.BytesIO(b"abc"))
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, size
        tar.addfile(info, io.BytesIO(b"\0" * size))
    return buffer.getvalue()


NOISE = tarball({"noise.bin": np.random.default_rng(0).bytes(900)}, "w")
"""An archive that cannot be compressed by much."""


def broken(content: bytes) -> bytes:
    """The same with a stretch of it changed, behind the first block."""
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(255 - byte for byte in content[middle : middle + 9])
        + content[middle + 9 :]
    )


def negative() -> bytes:
    """An archive with a member of a negative size, by which the total would shrink."""
    content = bytearray(member("huge.bin"))
    header = content[1024:1536]
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    content[1024:1536] = header
    return bytes(content)


HOSTILE = {
    "absolute": member("/sortnet-hostile"),
    "above": member("../hostile"),
    "above, hidden": member("folder/../../hostile"),
    "backslash": member("..\\hostile"),
    "symlink": member("link", tarfile.SYMTYPE, "/etc"),
    "hard link": member("link", tarfile.LNKTYPE, "/etc/passwd"),
    "pipe": member("pipe", tarfile.FIFOTYPE),
    "device": member("device", tarfile.CHRTYPE),
    "huge": member("huge.bin", size=2000),
    "cut off": member("cut.bin", size=900)[:700],
    "a broken xz": broken(lzma.compress(NOISE)),
    "a broken bz2": broken(bz2.compress(NOISE)),
    "a long header": member("x", tarfile.XHDTYPE, size=1 << 20),
    "a long name": member("x", tarfile.GNUTYPE_LONGNAME, size=1 << 20),
    "a negative size": negative(),
    "no archive": b"<html>not found</html>" * 100,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_write_nothing(tmp_path: Path, kind: str) -> None:
    archive, target = tmp_path / "archive.tar", tmp_path / "inner" / "target"
    archive.write_bytes(HOSTILE[kind])
    target.mkdir(parents=True)
    words = "was refused|allowed|cannot be unpacked"
    with pytest.raises(OSError, match=words) as caught:
        unpack(archive, target, 1000, download.no_progress)
    assert "\n" not in str(caught.value)
    everything = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    assert everything == {Path("archive.tar"), Path("inner"), Path("inner/target")}


def test_an_archive_of_any_number_of_members_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sortnet.lab.data.archive.MEMBERS", 10, raising=False)
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(tarball({f"{i}.bin": b"" for i in range(11)}))
    with pytest.raises(OSError, match="more than 10 members"):
        unpack(archive, tmp_path / "target", 1000, download.no_progress)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("honest", [True, False])
def test_a_download_of_any_number_of_bytes_is_refused(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, honest: bool
) -> None:
    """Whether or not the server says beforehand how many there will be."""
    content = b"a" * 5_000_000
    site.files["/endless"] = content
    if not honest:
        real = http.client.HTTPMessage.get
        monkeypatch.setattr(
            http.client.HTTPMessage,
            "get",
            lambda self, name, other=None: (
                "many" if name == "Content-Length" else real(self, name, other)
            ),
        )
    with pytest.raises(OSError, match="more than the 1,000,000 bytes allowed"):
        download.download(
            f"{site.url}/endless", tmp_path / "e", md5(content), download.no_progress, 1_000_000
        )
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_was_there_does_not_lead_out(tmp_path: Path) -> None:
    archive, target, outside = (tmp_path / name for name in ("a.tar", "target", "outside"))
    archive.write_bytes(member("link/hostile"))
    target.mkdir()
    outside.mkdir()
    (target / "link").symlink_to(outside)
    with pytest.raises(OSError, match="remove that link"):
        unpack(archive, target, 1000, download.no_progress)
    assert list(outside.iterdir()) == []


HOLD = """
import sys, time
from pathlib import Path
from sortnet.files import locked
with locked(Path(sys.argv[1]), "nothing"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.usefixtures("published")
def test_two_downloads_at_once_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / ".cifar100.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(OSError, match=f"process {other.pid} is downloading cifar100"):
            data.get("cifar100", tmp_path)
        other.send_signal(signal.SIGKILL)
    data.get("cifar100", tmp_path)  # a killed process's lock is gone
    assert data.check("cifar100", tmp_path) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("imagenet", "image-net.org"), ("digits", "need no download"), ("./pets", "only cifar10")],
)
def test_what_cannot_be_downloaded(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        data.get(name, tmp_path)


def test_check_lists_all_that_is_wrong_with_svhn(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {name: name.encode() * 50 for name in svhn.FILES.values()}
    site.files = {f"/{name}": content for name, content in contents.items()}
    monkeypatch.setitem(
        SOURCES,
        "svhn",
        tuple(Source(f"{site.url}/{name}", md5(content)) for name, content in contents.items()),
    )
    data.get("svhn", tmp_path)
    assert data.check("svhn", tmp_path) == []
    (tmp_path / svhn.FILES["train"]).write_bytes(b"other")
    (tmp_path / svhn.FILES["test"]).unlink()
    problems = data.check("svhn", tmp_path)
    assert [problem.path.name for problem in problems] == ["train_32x32.mat", "test_32x32.mat"]
    assert "MD5" in problems[0].reason
    assert "missing" in problems[1].reason
    data.get("svhn", tmp_path)
    assert data.check("svhn", tmp_path) == []
    assert len(site.asked) == 5  # the file that was right was not downloaded again
