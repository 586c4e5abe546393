"""What a model fixes about its attention, and which of it the Triton kernels take."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvproof_kernels.model_checks import HEADS, check_heads, check_numbers, check_options
from kvproof_kernels.tiles import CODES, DTYPES, MAX_HEAD_DIM, MAX_REST_DIM, Form

MAX_HIP_FLOAT32_DIM = 256
"""AMD's compiler spills above."""
HEAD_DIM_STEP = 16
"""Head and value dims are multiples of this: the compiled kernels rely on aligned rows."""
KV_SCALES = ("tensor", "head", "token")


@dataclass(frozen=True)
class Geometry:
    """Fixed for a model; hashable. ValueError where a number of heads or an option means nothing."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    block_size: int
    dtype: torch.dtype
    """Of query and output."""
    kv_dtype: torch.dtype
    """Of the pools."""
    scale: float
    """Multiplies q·k."""
    window: int | None = None
    """Visible tokens, the query's own included."""
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    """[num_q_heads]"""
    sinks: tuple[float, ...] | None = None
    """[num_q_heads]"""
    key_scale: float = 1.0
    """What a code of the key pool is multiplied by, where one scale serves the whole tensor."""
    value_scale: float = 1.0
    kv_scales: str = "tensor"
    """ "tensor", or "head" or "token", whose scales come with the pools."""
    mla: bool = False
    """The values are the first ``value_dim`` dims of the keys."""

    def __post_init__(self) -> None:
        check_heads(*(getattr(self, name) for name in HEADS))
        check_options(self.num_q_heads, self.window, self.softcap, self.alibi_slopes, self.sinks)
        check_numbers(scale=self.scale, key_scale=self.key_scale, value_scale=self.value_scale)
        if self.kv_scales not in KV_SCALES:
            raise ValueError(f"kv_scales {self.kv_scales!r}: one of {', '.join(KV_SCALES)}")

    @property
    def group_size(self) -> int:
        """Query heads a key head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def form(self) -> Form:
        options = bool(self.softcap) or self.alibi_slopes is not None
        token_scales = self.kv_scales == "token"
        return Form(self.head_dim, self.value_dim, self.dtype, self.kv_dtype, options, self.mla, token_scales)

    def unsupported(self, device: torch.device) -> str | None:
        """Why the kernels can't run this on ``device``, with what they can; or None."""
        widest = MAX_HEAD_DIM + MAX_REST_DIM
        known = (self.dtype, *CODES)
        reasons = {
            f"dtype {named(self.dtype)}: {', '.join(map(named, DTYPES))} only": self.dtype not in DTYPES,
            f"kv_dtype {named(self.kv_dtype)} with dtype {named(self.dtype)}: {', '.join(map(named, known))} only": (
                self.kv_dtype not in known
            ),
            f"head_dim {self.head_dim}: a multiple of {HEAD_DIM_STEP}, at most {widest}": (
                self.head_dim % HEAD_DIM_STEP != 0 or self.head_dim > widest
            ),
            f"head_dim {self.head_dim}: above {MAX_HEAD_DIM} only with mla and value_dim {MAX_HEAD_DIM}": (
                self.head_dim > MAX_HEAD_DIM and not (self.mla and self.value_dim == MAX_HEAD_DIM)
            ),
            f"value_dim {self.value_dim}: a multiple of {HEAD_DIM_STEP}, at most {MAX_HEAD_DIM}": (
                self.value_dim % HEAD_DIM_STEP != 0 or self.value_dim > MAX_HEAD_DIM
            ),
            f"scales a {self.kv_scales} for {named(self.kv_dtype)}: pools of 8 bits only": (
                self.kv_scales != "tensor" and self.kv_dtype not in CODES
            ),
            f"scales a token for {named(self.kv_dtype)}: int8 only": (
                self.kv_scales == "token" and self.kv_dtype != torch.int8
            ),
            f"float32 with head_dim or value_dim above {MAX_HIP_FLOAT32_DIM} on an AMD GPU": (
                is_hip(device)
                and self.dtype == torch.float32
                and max(self.head_dim, self.value_dim) > MAX_HIP_FLOAT32_DIM
            ),
            "float8_e4m3fn on this GPU: compute capability 8.9 or newer only": (
                self.kv_dtype == torch.float8_e4m3fn and not has_e4m3(device)
            ),
        }
        return next((reason for reason, applies in reasons.items() if applies), None)


def is_hip(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is not None


def has_e4m3(device: torch.device) -> bool:
    """Whether ``device`` converts e4m3; the interpreter does, and an AMD chip is Triton's to judge."""
    if device.type != "cuda" or is_hip(device):
        return True
    return torch.cuda.get_device_capability(device) >= (8, 9)


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
