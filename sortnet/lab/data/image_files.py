"""Reading images from untrusted files."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from sortnet.errors import UsageError

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF")
"""Formats that are opened; Pillow's other decoders are less well tested."""

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
"""File name extensions of images, in lower case."""

PIXELS = 50_000_000
"""Largest image that is decoded. A file of some kilobytes can claim gigabytes."""

SIDE = 65_535
"""Longest side of an image that is decoded."""

SHORT = 256
"""Short side after resizing, for networks that take 224 x 224."""


def read_image(path: str | Path, short: int = SHORT) -> Tensor:
    """Read the first frame of an image file: uint8, (3, height, width).

    Gray images get three equal channels, transparency is dropped, and EXIF orientation is ignored
    (as in torchvision's loader).

    Arguments:
        path: A JPEG, PNG, BMP, WebP, GIF or TIFF file. A broken, empty or huge one is a
            `UsageError` that names the file and the reason.
        short: Short side after resizing. An image that would then be huge is refused, too.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such image")
    if path.stat().st_size == 0:
        raise UsageError(f"{path}: the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unusual metadata is harmless
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _decode(path, short)
    except UnidentifiedImageError:
        raise UsageError(f"{path}: not a {', '.join(FORMATS)} image") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UsageError(f"{path}: {_TOO_LARGE}") from None
    except Exception as error:  # a damaged file can make a decoder raise anything
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the image
            raise OSError(f"{path}: {error.strerror}") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: {reason}") from None


def find_images(path: str | Path) -> list[Path]:
    """Return the images of a folder and its subfolders, sorted; of a file, the file itself.

    Raises:
        UsageError: The folder has no images.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not found:
        raise UsageError(f"{path} is neither a run nor a folder with images")
    return found


_TOO_LARGE = f"more than {PIXELS // 1_000_000} million pixels"


def _decode(path: Path, short: int) -> Tensor:
    with Image.open(path, formats=FORMATS) as image:
        _refuse_huge(image.width, image.height, short)
        pixels = np.array(_to_rgb(image))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _refuse_huge(width: int, height: int, short: int) -> None:
    """Refuse an image that needs too much memory, before or after resizing."""
    least, most = sorted((width, height))
    if width * height > PIXELS:
        raise UsageError(_TOO_LARGE)
    if most > SIDE:
        raise UsageError(f"{width} x {height} pixels: a side of more than {SIDE:,}")
    if short * short * most > PIXELS * least:
        raise UsageError(
            f"{width} x {height} pixels: {_TOO_LARGE} once its short side is resized to {short}"
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip values above 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise UsageError("its pixels have 32 bits; save it with 8 bits per channel")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")
