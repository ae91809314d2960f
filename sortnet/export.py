"""Networks for other programs: ONNX and torch.export files, checked before they get their names.

Both take normalised images of any number, ``(batch, 3, size, size)``, and give logits. What else
is needed to use them, the classes and how images are prepared, travels inside.
"""

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sortnet import files
from sortnet.errors import UsageError
from sortnet.fusion import kernels
from sortnet.pretrained import Config

BATCHES = (1, 7)
"""The batch sizes a file is checked at; neither is the one it is traced with."""

IMAGES = 200
TOLERANCE = 1e-4
"""The largest difference to PyTorch's logits that passes, or of logits above 1 this part.

A compact bilinear head needs it: its roots near zero make 2e-5 of rounding, also in PyTorch alone
from one batch size to another. Without such a head the difference is some 1e-6 of the logits.
"""

ABOUT = "sortnet.json"


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how it was checked.

    Attributes:
        path: Where it is.
        size: In bytes.
        images: How many images it was checked with.
        kind: ``given`` or ``random``.
        difference: The largest one between its logits and PyTorch's.
    """

    path: Path
    size: int
    images: int
    kind: str
    difference: float

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.size / 1e6:.1f} MB, differs from PyTorch by at most"
            f" {self.difference:.1g} over {self.images} {self.kind} images"
        )


def to_onnx(
    network: nn.Module,
    config: Config,
    output: str | Path,
    images: Tensor | None = None,
) -> Exported:
    """Write a network as one ONNX file, after comparing it with PyTorch in ONNX Runtime.

    Arguments:
        network: The network, as `sortnet.load` returns it.
        config: Its classes and preprocessing, as `sortnet.load` returns it.
        output: The file; one that is there is replaced when the new one is known to be right.
        images: Normalized images to compare with; random ones by default.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # the exporter needs it, and says so in forty lines
    except ImportError as error:
        raise UsageError(
            f"ONNX needs {error.name}, which is not installed:"
            " pip install onnx onnxscript onnxruntime"
        ) from None
    subject = _Subject.of(network, config, output, images)
    content = _onnx(subject)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])

    def run(batch: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": batch.numpy()})[0])

    return subject.write(content, subject.compared(run))


def to_torch_export(
    network: nn.Module,
    config: Config,
    output: str | Path,
    images: Tensor | None = None,
) -> Exported:
    """Write a network as a ``.pt2`` file of torch.export, after comparing it with the network.

    What is compared is the program in memory: loading a ``.pt2`` file may unpickle.

    Arguments:
        network: The network, as `sortnet.load` returns it.
        config: Its classes and preprocessing, as `sortnet.load` returns it.
        output: The file; one that is there is replaced when the new one is known to be right.
        images: As in `to_onnx`.
    """
    subject = _Subject.of(network, config, output, images, suffix=".pt2")
    program = subject.traced()
    difference = subject.compared(program.module())
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={ABOUT: subject.about()})
    return subject.write(buffer.getvalue(), difference)


@dataclass(frozen=True, eq=False)
class _Subject:
    """A network to be exported, where to, and the images that it is checked with."""

    network: nn.Module
    config: Config
    output: Path
    images: Tensor
    kind: str

    @classmethod
    def of(
        cls,
        network: nn.Module,
        config: Config,
        output: str | Path,
        images: Tensor | None,
        suffix: str = ".onnx",
    ) -> "_Subject":
        output = Path(output)
        if output.suffix != suffix:
            raise UsageError(f"{output} should be called {output.stem}{suffix}")
        if not output.parent.is_dir():
            raise FileNotFoundError(f"{output.parent} is not there to put {output.name} into")
        if images is not None:
            return cls(network.eval(), config, output, images, "given")
        return cls(network.eval(), config, output, _random_images(config), "random")

    def about(self) -> str:
        """The classes, and how images are prepared, as JSON."""
        config = self.config
        return json.dumps(
            {
                "title": config.title,
                "classes": config.classes,
                "size": config.size,
                "mean": config.mean,
                "std": config.std,
            }
        )

    def traced(self) -> ExportedProgram:
        # A batch of one would become a constant, and kernels are not for other programs.
        example = torch.zeros(2, *self.images.shape[1:])
        with torch.no_grad(), kernels.using("plain"):
            return torch.export.export(
                self.network, (example,), dynamic_shapes=({0: Dim("batch")},)
            )

    def compared(self, run: Callable[[Tensor], Tensor]) -> float:
        """The largest difference to the network's own logits, over all batch sizes."""
        differences, largest = [], 1.0
        with torch.no_grad(), kernels.using("plain"):
            for part in (x for batch in BATCHES for x in torch.split(self.images, batch)):
                expected = self.network(part)
                differences.append(float((run(part) - expected).abs().max()))
                largest = max(largest, float(expected.abs().max()))
        if not all(difference <= TOLERANCE * largest for difference in differences):  # nor is NaN
            raise OSError(
                f"{self.output} is not written: its logits would differ from PyTorch's by"
                f" {max(differences):.2g}, and {TOLERANCE * largest:.2g} is allowed"
            )
        return max(differences)

    def write(self, content: bytes, difference: float) -> Exported:
        files.write(self.output, content)
        return Exported(self.output, len(content), len(self.images), self.kind, difference)


def _onnx(subject: _Subject) -> bytes:
    program = subject.traced()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's about its own future
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            external_data=False,
            optimize=False,  # it would take the 1e-8 under a bilinear head's roots for 0
            verbose=False,
        )
    assert exported is not None
    exported.model.metadata_props[ABOUT] = subject.about()
    content: bytes = exported.model_proto.SerializeToString()
    return content


def _random_images(config: Config) -> Tensor:
    channels = int(config.options.get("in_chans", 3))
    generator = torch.Generator().manual_seed(0)
    return torch.randn(IMAGES, channels, config.size, config.size, generator=generator)
