"""Your own images: a folder with a folder for each class is all that is needed.

This draws such a folder, of circles, squares and crosses, trains LeNet*-SORT on it, and then asks
the trained network about pictures that it has never seen. With a folder of your own only the two
lines in `main` that name a directory change. `sortnet train lenet --branched --fusion sort --data
FOLDER` does the same from the shell.

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
    """A picture of 48 x 48 with one shape, of any colour, size and place, on noise."""
    noise = random.integers(0, 90, (48, 48, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    pen = ImageDraw.Draw(image)
    size = int(random.integers(16, 28))
    left, top = (int(x) for x in random.integers(4, 44 - size, 2))
    box = (left, top, left + size, top + size)
    red, green, blue = (int(x) for x in random.integers(120, 256, 3))
    colour = (red, green, blue)
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.line(box, fill=colour, width=5)
        pen.line((left, top + size, left + size, top), fill=colour, width=5)
    return image


def make_folder(folder: Path, images: int) -> None:
    """Draw so many images of each shape; a fifth of them will be the test images."""
    random = np.random.default_rng(0)
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for i in range(images):
            draw(shape, random).save(folder / shape / f"{i:04}.png")


def main(images: int = 60, steps: int = 120, out: Path | None = None) -> float:
    """Draw, train, predict; the error on the test images in per cent."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (out or Path(temporary)) / "shapes"  # your folder
        make_folder(folder, images)
        recipe = Recipe(
            "shapes", (Section(0.01, steps), Section(0.001, max(1, steps // 4))), batch=36
        )
        run = runs.Run(
            "lenet", recipe, fusion="sort", data=str(folder), options={"branched": True}
        )
        result = runs.train(run, out=folder.parent / "runs")  # your directory of runs
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
