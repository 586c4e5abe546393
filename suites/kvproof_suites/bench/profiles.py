"""What a benchmark goes through: a TOML file, checked field by field. ``quick``, ``paper`` and ``full`` ship with it.

seconds = 0.5                     # budget of a cell and implementation, once it is warm

[[attention]]                     # decode, prefill or mixed, as the points are; may be given again
points = ["8q1s1k", "2q2k_8q1s1k"]
heads = ["32/8", "mla128"]        # mla128: latent attention with 128 query heads
head_dims = [128]
dtypes = ["auto"]                 # float32 on a CPU, bfloat16 on a GPU
kv_dtypes = ["float8_e4m3fn"]     # of the pools; left out: as the query's
block_sizes = [16, 64]
tables = ["dense", "shuffled"]
caches = ["cold", "hot"]
modes = ["eager", "graph"]        # graph: on a GPU, of kernels that declare it

[[write]]                         # points, heads, head_dims, dtypes, kv_dtypes, block_sizes, tables, caches, modes
[[copy]]                          # the same; of a point, as many blocks are copied as it has sequences

[allocator]                       # block_sizes
[step_tensors]                    # block_sizes, batches
[serving]                         # shares of requests with a common prefix
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from kvproof_reports.bounded import TOML_BYTES, read_text

SHIPPED = ("quick", "paper", "full")
SWEEPS = ("attention", "write", "copy")


class ProfileError(ValueError):
    """``file: field: what is wrong``, with what to do."""


@dataclass(frozen=True)
class Sweep:
    """Every combination of these is a cell."""

    points: tuple[str, ...]
    heads: tuple[str, ...] = ("32/8",)
    head_dims: tuple[int, ...] = (128,)
    dtypes: tuple[str, ...] = ("auto",)
    kv_dtypes: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = (16,)
    tables: tuple[str, ...] = ("shuffled",)
    caches: tuple[str, ...] = ("cold",)
    modes: tuple[str, ...] = ("eager",)


@dataclass(frozen=True)
class HostSweep:
    """Of work of the host."""

    block_sizes: tuple[int, ...] = (16, 128)
    batches: tuple[int, ...] = (256,)
    shares: tuple[float, ...] = (0.0, 0.3)


@dataclass(frozen=True)
class Profile:
    name: str
    seconds: float = 0.5
    attention: tuple[Sweep, ...] = ()
    write: tuple[Sweep, ...] = ()
    copy: tuple[Sweep, ...] = ()
    allocator: HostSweep | None = None
    step_tensors: HostSweep | None = None
    serving: HostSweep | None = None


HOST_FIELDS = {"allocator": ("block_sizes",), "step_tensors": ("block_sizes", "batches"), "serving": ("shares",)}


@dataclass(frozen=True)
class _Reader:
    """Reads one file; every error says where in it."""

    file: str
    known_sweep: tuple[str, ...] = field(default=tuple(one.name for one in fields(Sweep)))

    def profile(self, data: Mapping[str, Any], name: str) -> Profile:
        self.require_known(data, tuple(one.name for one in fields(Profile))[1:], "")
        seconds = data.get("seconds", Profile.seconds)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 3600:
            raise self.error("seconds", f"{seconds!r} is not a number of seconds above 0 and below 3600")
        sweeps = {kind: self.sweeps(kind, data[kind]) for kind in SWEEPS if kind in data}
        host = {kind: self.host(kind, data[kind]) for kind in HOST_FIELDS if kind in data}
        if not sweeps and not host:
            raise self.error("file", "names nothing to time; begin with [[attention]] and points")
        return Profile(name, float(seconds), **sweeps, **host)  # type: ignore[arg-type]

    def sweeps(self, kind: str, given: Any) -> tuple[Sweep, ...]:
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise self.error(kind, f"is a list of tables: write [[{kind}]]")
        return tuple(self.sweep(f"{kind}[{i}]", one) for i, one in enumerate(given))

    def sweep(self, where: str, given: Mapping[str, Any]) -> Sweep:
        self.require_known(given, self.known_sweep, f"{where}.")
        if "points" not in given:
            raise self.error(f"{where}.points", 'is missing; such as points = ["8q1s1k"]')
        return Sweep(**{name: self.listed(f"{where}.{name}", value) for name, value in given.items()})

    def host(self, kind: str, given: Any) -> HostSweep:
        if not isinstance(given, dict):
            raise self.error(kind, f"is a table: write [{kind}]")
        self.require_known(given, HOST_FIELDS[kind], f"{kind}.")
        return HostSweep(**{name: self.listed(f"{kind}.{name}", value) for name, value in given.items()})

    def listed(self, where: str, given: Any) -> tuple[Any, ...]:
        kinds: tuple[type, ...] = (str,)
        if where.endswith(("head_dims", "block_sizes", "batches")):
            kinds = (int,)
        elif where.endswith("shares"):
            kinds = (int, float)
        right = isinstance(given, list) and given and all(isinstance(one, kinds) and one is not True for one in given)
        if not right or (kinds == (int,) and min(given) < 1):
            what = {str: "texts", int: "whole numbers from 1"}.get(kinds[-1], "numbers")
            raise self.error(where, f"{given!r} is not a list of {what} with at least one")
        return tuple(given)

    def require_known(self, given: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise self.error(f"{prefix}{name}", f"unknown key; {hint}")

    def error(self, where: str, what: str) -> ProfileError:
        return ProfileError(f"{self.file}: {where}: {what}")


def read_profile(name_or_file: str) -> Profile:
    """A shipped profile by its name, or the one in a TOML file.

    Raises:
        ProfileError: no such profile, not TOML, or a key or a value that means nothing.
    """
    if name_or_file in SHIPPED:
        text = (resources.files(__package__) / "profiles" / f"{name_or_file}.toml").read_text(encoding="utf-8")
        return parse_profile(text, f"{name_or_file}.toml", name_or_file)
    path = Path(name_or_file)
    try:
        text = read_text(path, TOML_BYTES)
    except OSError as error:
        raise ProfileError(
            f"{name_or_file}: {error.strerror}; give one of {', '.join(SHIPPED)}, or a TOML file"
        ) from None
    except UnicodeDecodeError:
        raise ProfileError(f"{name_or_file}: is not text in UTF-8") from None
    except ValueError as error:
        raise ProfileError(f"{name_or_file}: {error}") from None
    return parse_profile(text, str(path), path.stem)


def parse_profile(text: str, file: str, name: str) -> Profile:
    try:
        return _Reader(file).profile(tomllib.loads(text), name)
    except ProfileError:
        raise
    except (ValueError, RecursionError) as error:  # a number of too many digits is no TOMLDecodeError
        raise ProfileError(f"{file}: is not TOML: {error}") from None
