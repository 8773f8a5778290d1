"""The bytes of host tensors, without numpy: torch does not depend on it, and neither do we."""

from __future__ import annotations

import ctypes

import torch

__all__ = ["bytes_of", "tensor_of"]


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous host tensor; the tensor must outlive the view."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def tensor_of(data: bytes, length: int, device: torch.device) -> torch.Tensor:
    """``data`` as a tensor of ``length`` bytes on ``device``, padded with zeros."""
    padded = bytearray(length)
    padded[: len(data)] = data
    return torch.frombuffer(padded, dtype=torch.uint8).to(device)
