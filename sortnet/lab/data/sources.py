"""Official sources of the datasets, and their published checksums."""

from dataclasses import dataclass

GIGABYTE = 1 << 30


@dataclass(frozen=True)
class Source:
    """A file to download.

    Attributes:
        url: The source; its last part is the file's name.
        md5: The published checksum.
        unpacked: Largest size of an archive's content in bytes; 0 if it is no archive.
    """

    url: str
    md5: str
    unpacked: int = 0

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[-1]


SOURCES = {
    "cifar10": (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            GIGABYTE,
        ),
    ),
    "cifar100": (
        Source(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            GIGABYTE,
        ),
    ),
    "svhn": (
        Source(
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            "e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        Source(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "eb5a983be6a315427106f1b164d9cef3",
        ),
        Source(
            "http://ufldl.stanford.edu/housenumbers/extra_32x32.mat",
            "a93ce644f1a588dc4d68dda5feec44a7",
        ),
    ),
    "caltech256": (
        Source(
            "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
            "67b4f42ca05d46448c6bb8ecd2220f6d",
            4 * GIGABYTE,
        ),
    ),
}

CIFAR10_FILES = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
"""MD5 of the files in the archive of CIFAR-10."""

ELSEWHERE = {
    "imagenet": "imagenet cannot be downloaded automatically: request ILSVRC2012 at image-net.org,"
    " then put the images into imagenet/train/SYNSET and imagenet/val/SYNSET",
    "digits": "digits need no download: they come with scikit-learn",
}
"""Messages for datasets that are not downloaded."""
