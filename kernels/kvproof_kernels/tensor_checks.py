"""The single demands that a kernel makes of a tensor; every message names the tensor and its shape."""

from __future__ import annotations

import torch
from torch import Tensor


def check_dims(name: str, tensor: Tensor, num_dims: int) -> None:
    if tensor.dim() != num_dims:
        raise ValueError(f"{name} {shape_of(tensor)} must have {num_dims} dims")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} {shape_of(tensor)} must be {list(shape)}")


def check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{name} {shape_of(tensor)} is {tensor.dtype}; it must be {dtype}")


def check_same_dtype(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.dtype != other.dtype:
        raise TypeError(f"{name} is {tensor.dtype}, {other_name} {other.dtype}; they must be the same")


def check_device(first: Tensor, others: dict[str, Tensor]) -> None:
    for name, tensor in others.items():
        if tensor.device != first.device:
            raise ValueError(f"{name} {shape_of(tensor)} is on {tensor.device}, the other tensors on {first.device}")


def check_unit_stride(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} {shape_of(tensor)} has last stride {tensor.stride(-1)}; it must be 1")


def shape_of(tensor: Tensor) -> str:
    return str(list(tensor.shape))
