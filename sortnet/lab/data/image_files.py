"""Reading images from files that nobody vouches for."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from sortnet.errors import UsageError

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF")
"""What is opened; Pillow's other formats are rare and less well guarded."""

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
"""How the names of images end, in small letters."""

PIXELS = 50_000_000
"""The largest image that is decoded: a file of some kilobytes can claim gigabytes."""


SIDE = 65_535
"""The longest side of an image that is decoded."""

SHORT = 256
"""What the short side is resized to for networks that take 224 x 224."""


def read_image(path: str | Path, short: int = SHORT) -> Tensor:
    """Read an image, of a file's first frame, as it is stored: uint8, (3, height, width).

    Grey images get three equal colours, transparency is dropped, and a camera's note on how it
    was held is not followed (as in torchvision's loader).

    Arguments:
        path: A JPEG, PNG, BMP, WebP, GIF or TIFF file. A broken, empty or huge one is a
            `ValueError` that names the file and the reason.
        short: What the short side will be resized to: an image that would then be huge is refused,
            too.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such image")
    if path.stat().st_size == 0:
        raise UsageError(f"{path}: the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata does no harm
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _decoded(path, short)
    except UnidentifiedImageError:
        raise UsageError(f"{path}: not a {', '.join(FORMATS)} image") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UsageError(f"{path}: {_TOO_LARGE}") from None
    except Exception as error:  # a damaged file can make a decoder raise anything
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the image
            raise OSError(f"{path}: {error.strerror}") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: {reason}") from None


_TOO_LARGE = f"more than {PIXELS // 1_000_000} million pixels"


def _decoded(path: Path, short: int) -> Tensor:
    with Image.open(path, formats=FORMATS) as image:
        _refuse_huge(image.width, image.height, short)
        pixels = np.array(_coloured(image))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _refuse_huge(width: int, height: int, short: int) -> None:
    """Refuse an image that needs too much memory, as it is or once it is resized."""
    least, most = sorted((width, height))
    if width * height > PIXELS:
        raise UsageError(_TOO_LARGE)
    if most > SIDE:
        raise UsageError(f"{width} x {height} pixels: a side of more than {SIDE:,}")
    if short * short * most > PIXELS * least:
        raise UsageError(
            f"{width} x {height} pixels: {_TOO_LARGE} once its short side is resized to {short}"
        )


def _coloured(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would cut off all above 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise UsageError("its pixels have 32 bits; save it with 8 bits a colour")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")
