"""The behavior of gradients: whether they shatter with depth, and their rounding errors.

Balduzzi et al. (2017) study the gradient with respect to the input along a line through the input
space: in deep chains it becomes white noise, in residual networks it stays correlated for longer.
"""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sortnet.fusion.private import BatchNorm


def line(a: Tensor, b: Tensor, points: int) -> Tensor:
    """Return equally spaced points on the line from one image to another, both included.

    Arguments:
        a: An image, :math:`(C, H, W)`.
        b: Another image.
        points: Number of points.

    Example:
        >>> line(torch.zeros(1, 2, 2), torch.ones(1, 2, 2), 5)[:, 0, 0, 0]
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    share = torch.linspace(0, 1, points, dtype=a.dtype).view(-1, 1, 1, 1)
    return a + share * (b - a)


def calibrated(network: nn.Module, images: Tensor) -> nn.Module:
    """Return a copy in eval mode whose batch normalization has the images' statistics.

    The copy is a function of one image, even before training.
    """
    network = copy.deepcopy(network).train()
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.reset_running_stats()
            module.momentum = None  # the plain mean over all batches
    with torch.no_grad():
        network(images)
    return network.eval()


def input_gradients(network: nn.Module, images: Tensor, direction: Tensor) -> Tensor:
    r"""Return the gradient of one combination of the logits with respect to each image.

    .. math:: g_i = \nabla_{x_i} \, d^\top f(x_i)

    Arguments:
        network: In evaluation mode.
        images: :math:`(N, C, H, W)`.
        direction: The combination :math:`d`, one number for each class.

    Returns:
        :math:`(N, CHW)`.
    """
    images = images.detach().requires_grad_()
    response = (network(images) @ direction).sum()
    (gradient,) = torch.autograd.grad(response, images)
    return gradient.flatten(1)


def autocorrelation(gradients: Tensor, lags: Sequence[int]) -> Tensor:
    r"""Return the autocorrelation of gradients along a line, by distance.

    .. math:: R(k) = \frac{\sum_t (g_t - \bar g)^\top (g_{t+k} - \bar g) / (T - k)}
                          {\sum_t \lVert g_t - \bar g \rVert^2 / T}

    It is 0 beyond lag 0 for white noise, and near 1 for a function that is almost linear.

    Arguments:
        gradients: :math:`(T, D)`, in the order of the line.
        lags: The distances :math:`k`.

    Example:
        >>> wave = torch.sin(torch.arange(200.0) / 20)[:, None]
        >>> noise = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
        >>> [f"{float(autocorrelation(x, [1]).abs()):.1f}" for x in (wave, noise)]
        ['1.0', '0.0']
    """
    centered = gradients.double() - gradients.double().mean(0)
    power = centered.square().sum(1).mean()
    similar = [(centered[: len(centered) - k] * centered[k:]).sum(1).mean() for k in lags]
    return torch.stack(similar) / power


def gradient_correlation(
    network: nn.Module, images: Tensor, lags: Sequence[int], points: int = 64, seed: int = 0
) -> Tensor:
    """Return the autocorrelation of input gradients along a line between two images.

    Arguments:
        network: Any network; its batch normalization is calibrated on the images.
        images: At least two; the line goes from the first to the second.
        lags: Distances in steps along the line.
        points: Number of points on the line.
        seed: Seed of the combination of logits that is differentiated.
    """
    ready = calibrated(network, images)
    path = line(images[0], images[1], points)
    with torch.no_grad():
        classes = ready(path[:2]).shape[1]
    draw = torch.Generator().manual_seed(seed)
    direction = torch.randn(classes, generator=draw).to(path)
    return autocorrelation(input_gradients(ready, path, direction), lags)


def rounding_error(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    r"""Return the relative error of the parameters' gradient in float32, against float64.

    .. math:: \lVert g_{32} - g_{64} \rVert / \lVert g_{64} \rVert
    """
    single, double = copy.deepcopy(network).float(), copy.deepcopy(network).double()
    gradients = []
    for model, x in ((single, images.float()), (double, images.double())):
        loss = F.cross_entropy(model(x), labels)
        found = torch.autograd.grad(loss, list(model.parameters()))
        gradients.append(torch.cat([gradient.double().flatten() for gradient in found]))
    return float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
