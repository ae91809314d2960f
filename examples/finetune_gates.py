"""Put zero gates into a trained ResNet-20 and fine-tune both forms, over paired seeds.

The network is the one that comes with sortnet, trained on CIFAR-10 with the sum. With zero gates
its second-order terms start switched off, so that both forms start from the same outputs, and
fine-tuning learns the gates. The real comparison uses CIFAR-10 and five seeds:

$ sortnet data get cifar10
$ python examples/finetune_gates.py --data cifar10 --epochs 3 --seeds 5

Without arguments a few steps are taken on the embedded digits, with a new classifier.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import sortnet
from sortnet import surgery

SHIPPED = "resnet20-cifar10"


def main(
    data: str = "digits",
    seeds: int = 1,
    epochs: float = 0.1,
    root: Path = Path("data"),
    out: Path | None = None,
) -> str:
    """Convert, check that the outputs are unchanged, and compare; return the verdict."""
    network, _ = sortnet.load(SHIPPED)
    gated = surgery.sortify(network, gate="zero")
    images = torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        difference = (gated(images) - network(images)).abs().max()
    print(f"with zero gates the outputs differ by {difference:g}\n")
    with tempfile.TemporaryDirectory() as temporary:
        answer = sortnet.compare(
            SHIPPED,
            data,
            fusions=("sum", "sort"),
            seeds=seeds,
            recipe="finetune",
            epochs=epochs,
            root=root,
            out=out or temporary,
        )
    print(answer)
    return answer.verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=0.1)
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
