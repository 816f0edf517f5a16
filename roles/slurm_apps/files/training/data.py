# SPDX-License-Identifier: GPL-3.0-or-later
"""Data sets and their models. This file is the one to change for a training of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

Found = tuple[Any, Any, nn.Module]


def load(name: str, dropout: float) -> Found:
    """What to train on, what to test on, and an untrained model.

    :param name: `digits`, or a directory with `train/CLASS/*.jpeg` and `val/CLASS/*.jpeg`.
    """
    return digits(dropout) if name == "digits" else images(Path(name))


def digits(dropout: float) -> Found:
    """1,797 written digits of 8 x 8 pixels, which come with scikit-learn; every fifth is for the test."""
    from sklearn.datasets import load_digits

    told = load_digits()
    pixels = torch.tensor(told.data, dtype=torch.float32) / 16
    labels = torch.tensor(told.target, dtype=torch.int64)
    is_test = torch.arange(len(labels)) % 5 == 0
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 10))
    return (
        TensorDataset(pixels[~is_test], labels[~is_test]),
        TensorDataset(pixels[is_test], labels[is_test]),
        model,
    )


def images(directory: Path) -> Found:
    """A directory for each class, as ImageNet has them, and a ResNet-50."""
    from torchvision import datasets, models, transforms

    middle = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    train: Dataset[Any] = datasets.ImageFolder(
        str(directory / "train"),
        transforms.Compose(
            [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), middle]
        ),
    )
    test = datasets.ImageFolder(
        str(directory / "val"),
        transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), middle]),
    )
    return train, test, models.resnet50(num_classes=len(test.classes))
