"""The networks in timm: after ``import sortnet.timm``, ``timm.create_model("sortnet_resnet20")``.

Arguments are those of `sortnet.create_model`, such as ``num_classes`` and ``fusion="sort"``.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sortnet.errors import UsageError
from sortnet.networks import NETWORKS, Network, create_model

try:
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    from timm.models import register_model
except ImportError as error:
    raise ImportError("sortnet.timm needs timm: pip install timm") from error

PREFIX = "sortnet_"


class TimmNetwork(Network):
    """A network with the methods that timm expects of its models, and the same state-dict keys.

    Arguments:
        network: The network whose stages are used.
        pretrained_cfg: The settings of timm's data pipeline.

    Example:
        >>> import timm
        >>> model = timm.create_model("sortnet_resnet20", fusion="sort", num_classes=7)
        >>> model.num_features, model.get_classifier()
        (64, Linear(in_features=64, out_features=7, bias=True))
    """

    def __init__(self, network: Network, pretrained_cfg: dict[str, Any]) -> None:
        super().__init__(dict(network.named_children()), network.features, network.size)
        names = [name for name, _ in self.named_children()]
        self._head = names.index("flatten" if "flatten" in names else "pool")
        *self._trunk, self._last = names
        classifier = self.get_submodule(self._last)
        assert isinstance(classifier, nn.Linear)
        self.num_features = self.head_hidden_size = classifier.in_features
        self.num_classes = classifier.out_features
        self.pretrained_cfg = self.default_cfg = pretrained_cfg

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the feature maps before pooling, :math:`(N, C, H, W)`."""
        return self._run(self._trunk[: self._head], x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits for feature maps, or the input of the classifier, :math:`(N, C)`."""
        x = self._run(self._trunk[self._head :], x)
        return x if pre_logits else self._run([self._last], x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits for images."""
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        """Return the last stage."""
        return self.get_submodule(self._last)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a new one or, for 0 classes, by the identity, as in timm.

        Arguments:
            num_classes: Number of classes.
            global_pool: Not supported: the pooling is part of the network.
        """
        if global_pool is not None:
            raise UsageError("global_pool cannot be changed; pass head= to create_model instead")
        fresh = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        place = next(self.parameters())
        self.add_module(self._last, fresh.to(place.device, place.dtype))
        self.num_classes = num_classes

    def _run(self, stages: list[str], x: Tensor) -> Tensor:
        for name in stages:
            x = self.get_submodule(name)(x)
        return x


def _config(name: str, network: Network, channels: int, classes: int) -> dict[str, Any]:
    return {
        "architecture": PREFIX + name,
        "url": "",
        "num_classes": classes,
        "input_size": (channels, network.size, network.size),
        "fixed_input_size": "flatten" in dict(network.named_children()),
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "interpolation": "bicubic",
        "crop_pct": 0.875 if network.size > 64 else 1.0,
        "first_conv": "conv1",
        "classifier": list(dict(network.named_children()))[-1],
    }


def _entry(name: str) -> Callable[..., TimmNetwork]:
    def create(
        pretrained: bool = False,
        num_classes: int | None = None,
        in_chans: int = 3,
        **options: Any,  # noqa: ANN401
    ) -> TimmNetwork:
        if pretrained:
            raise UsageError(f"{PREFIX}{name} has no published weights; use pretrained=False")
        for unused in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
            options.pop(unused, None)
        classes = NETWORKS[name].num_classes if num_classes is None else num_classes
        network = create_model(name, max(1, classes), in_chans=in_chans, **options)
        model = TimmNetwork(network, _config(name, network, in_chans, classes))
        if classes == 0:
            model.reset_classifier(0)
        return model

    create.__name__ = create.__qualname__ = PREFIX + name
    create.__doc__ = f"Create {NETWORKS[name].title}; arguments as in `sortnet.create_model`."
    return create


for _name in NETWORKS:
    register_model(_entry(_name))
