"""Export networks to ONNX and torch.export files, which are checked before they are written.

Both take normalized images, ``(batch, 3, size, size)`` with any batch size, and return logits. The
classes and the preprocessing are stored inside the file.
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
"""Batch sizes used to check a file; neither is the one it is traced with."""

IMAGES = 200
TOLERANCE = 1e-4
"""The largest difference from PyTorch's logits that passes; relative to the largest logit above 1.

A compact bilinear head needs this much: its roots near zero amplify rounding errors to 2e-5, also
between batch sizes in PyTorch alone. Without such a head the difference is about 1e-6.
"""

ABOUT = "sortnet.json"


@dataclass(frozen=True)
class Exported:
    """An exported file, and how it was checked.

    Attributes:
        path: The file.
        size: Its size in bytes.
        images: Number of images it was checked with.
        kind: ``given`` or ``random`` images.
        difference: Largest difference between its logits and PyTorch's.
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
    """Export a network to one ONNX file, after comparing it with PyTorch in ONNX Runtime.

    Arguments:
        network: The network, as `sortnet.load` returns it.
        config: Its classes and preprocessing, as `sortnet.load` returns it.
        output: The file; an existing one is replaced once the new one has passed the check.
        images: Normalized images to compare with; random ones by default.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # the exporter needs it, and its own error has forty lines
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
    """Export a network to a ``.pt2`` file of torch.export, after comparing it with the network.

    The program in memory is compared, not the file: loading a ``.pt2`` file may unpickle.

    Arguments:
        network: The network, as `sortnet.load` returns it.
        config: Its classes and preprocessing, as `sortnet.load` returns it.
        output: The file; an existing one is replaced once the new one has passed the check.
        images: Normalized images to compare with; random ones by default.
    """
    subject = _Subject.of(network, config, output, images, suffix=".pt2")
    program = subject.traced()
    difference = subject.compared(program.module())
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={ABOUT: subject.about()})
    return subject.write(buffer.getvalue(), difference)


@dataclass(frozen=True, eq=False)
class _Subject:
    """A network to export, the file, and the images to check it with."""

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
            raise FileNotFoundError(
                f"cannot write {output}: there is no directory {output.parent}"
            )
        if images is not None:
            return cls(network.eval(), config, output, images, "given")
        return cls(network.eval(), config, output, _random_images(config), "random")

    def about(self) -> str:
        """Return the classes and the preprocessing as JSON."""
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
        # A batch of one would become a constant; kernels cannot be exported.
        example = torch.zeros(2, *self.images.shape[1:])
        with torch.no_grad(), kernels.using("plain"):
            return torch.export.export(
                self.network, (example,), dynamic_shapes=({0: Dim("batch")},)
            )

    def compared(self, run: Callable[[Tensor], Tensor]) -> float:
        """Return the largest difference from the network's own logits, over all batch sizes."""
        differences, largest = [], 1.0
        with torch.no_grad(), kernels.using("plain"):
            for part in (x for batch in BATCHES for x in torch.split(self.images, batch)):
                expected = self.network(part)
                differences.append(float((run(part) - expected).abs().max()))
                largest = max(largest, float(expected.abs().max()))
        if not all(
            difference <= TOLERANCE * largest for difference in differences
        ):  # also for NaN
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
        warnings.simplefilter("ignore")  # deprecations inside the exporter
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            external_data=False,
            optimize=False,  # it would replace the 1e-8 under the roots of a bilinear head by 0
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
