"""Train on your own images: a directory with one subdirectory per class.

This example draws circles, squares and crosses, trains LeNet*-SORT on them, and classifies a new
image with the trained network. For your own images, change the two lines in `main` that name a
directory. `sortnet train lenet --branched --fusion sort --clip 1 --data FOLDER` does the same
from the shell.

$ python examples/custom_dataset.py --images 60 --steps 120
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from sortnet import pretrained
from sortnet.lab import data, runs
from sortnet.lab.recipes import Recipe, Section

SHAPES = ("circle", "cross", "square")


def draw(shape: str, random: np.random.Generator) -> Image.Image:
    """Draw one shape of random color, size and position on noise, 48 x 48 pixels."""
    noise = random.integers(0, 90, (48, 48, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    pen = ImageDraw.Draw(image)
    size = int(random.integers(16, 28))
    left, top = (int(x) for x in random.integers(4, 44 - size, 2))
    box = (left, top, left + size, top + size)
    red, green, blue = (int(x) for x in random.integers(120, 256, 3))
    color = (red, green, blue)
    if shape == "circle":
        pen.ellipse(box, fill=color)
    elif shape == "square":
        pen.rectangle(box, fill=color)
    else:
        pen.line(box, fill=color, width=5)
        pen.line((left, top + size, left + size, top), fill=color, width=5)
    return image


def make_folder(folder: Path, images: int) -> None:
    """Draw this many images of each shape; a fifth of them become test images."""
    random = np.random.default_rng(0)
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for i in range(images):
            draw(shape, random).save(folder / shape / f"{i:04}.png")


def main(images: int = 60, steps: int = 120, out: Path | None = None) -> float:
    """Draw, train, predict; return the test error in percent."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (out or Path(temporary)) / "shapes"  # your folder
        make_folder(folder, images)
        recipe = Recipe(
            "shapes",
            (Section(0.01, steps), Section(0.001, max(1, steps // 4))),
            batch=36,
            clip=1.0,
        )
        run = runs.Run(
            "lenet", recipe, fusion="sort", data=str(folder), options={"branched": True}
        )
        result = runs.train(run, out=folder.parent / "runs")  # your output directory
        print(f"{run.title}: {result.error:.1f} % of {int(result.test['images'])} images wrong")

        network, config = runs.load(result.directory)
        picture = folder.parent / "new.png"
        draw("cross", np.random.default_rng(1)).save(picture)
        (probabilities,) = pretrained.classify(network, config, [data.read_image(picture)])
        for name, probability in zip(config.classes, probabilities.tolist(), strict=True):
            print(f"{picture.name} shows a {name}: {100 * probability:.0f} %")
        return result.error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--steps", type=int, default=120)
    arguments = parser.parse_args()
    main(arguments.images, arguments.steps)
