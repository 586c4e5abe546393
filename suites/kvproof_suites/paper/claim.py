"""A published figure, how near ours has to come, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = float | tuple[float, float]
"""A figure, or the lowest and highest of two readings where the source does not say which it means."""


@dataclass(frozen=True)
class Tolerance:
    """How far from the published figure ours may lie, or a bound that it has to keep whatever was published."""

    amount: float
    unit: str
    """"points": of the figure itself, such as percentage points; "%": of the published figure; "at least" and
    "at most": ``amount`` is the bound."""

    @property
    def is_bound(self) -> bool:
        return self.unit in ("at least", "at most")

    def __str__(self) -> str:
        if self.is_bound:
            return f"{self.unit} {round(self.amount, 2):g}"
        return f"±{self.amount:g} {self.unit}" if self.amount else "exact"

    def holds(self, published: float | None, ours: Value) -> bool:
        low, high = ours if isinstance(ours, tuple) else (ours, ours)
        if self.is_bound:
            return low >= self.amount if self.unit == "at least" else high <= self.amount
        if published is None:
            raise ValueError(f"a tolerance of {self} needs a published figure")
        room = self.amount * (abs(published) / 100 if self.unit == "%" else 1)
        slack = 1e-9 * abs(published)  # of the sums of floats on the way, not of the claim
        return low - room - slack <= published <= high + room + slack


EXACT = Tolerance(0, "points")


def points(amount: float) -> Tolerance:
    return Tolerance(amount, "points")


def percent(amount: float) -> Tolerance:
    return Tolerance(amount, "%")


def at_least(bound: float) -> Tolerance:
    return Tolerance(bound, "at least")


def at_most(bound: float) -> Tolerance:
    return Tolerance(bound, "at most")


@dataclass(frozen=True)
class Claim:
    """One figure. ``key`` is what the computation calls it."""

    key: str
    says: str
    published: float | None
    """None: nothing was published."""
    source: str
    tolerance: Tolerance | None = None
    """None: shown, not asserted."""
    why: str = ""
    """Why it is not asserted, or where the tolerance comes from."""
    unit: str = ""


@dataclass(frozen=True)
class Row:
    """A claim with what came of it."""

    claim: Claim
    ours: Value | None
    """None: it could not be computed here; ``absent`` says why."""
    absent: str = ""

    @property
    def reason(self) -> str:
        """Why this tolerance, or why none, or why nothing was computed; may be empty."""
        return self.absent or self.claim.why

    @property
    def verdict(self) -> str:
        claim = self.claim
        if self.ours is None:
            return "not run"
        if claim.tolerance is None:
            return "shown, not asserted"
        return "holds" if claim.tolerance.holds(claim.published, self.ours) else "missed"


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis, or bars when ``x`` holds words."""

    name: str
    """Of the file that it is drawn into."""
    title: str
    x_title: str
    y_title: str
    x: Sequence[float] | Sequence[str]
    lines: Mapping[str, Sequence[float]]
    log_x: bool = False

    @property
    def is_bars(self) -> bool:
        return bool(self.x) and isinstance(self.x[0], str)


@dataclass(frozen=True)
class Computed:
    """What a section computes: a value for each of its claims, and curves that no single figure tells."""

    values: Mapping[str, Value]
    charts: Sequence[Chart] = field(default_factory=tuple)
    absent: Mapping[str, str] = field(default_factory=dict)
    """Keys that could not be computed, and why."""


def judge(claims: Sequence[Claim], computed: Computed) -> list[Row]:
    """A row for each claim.

    Raises:
        KeyError: a claim that was neither computed nor said to be absent, or a value that no claim names.
    """
    known = {claim.key for claim in claims}
    if strangers := set(computed.values) - known:
        raise KeyError(f"no claim names {sorted(strangers)}")
    return [
        Row(claim, None, computed.absent[claim.key])
        if claim.key in computed.absent
        else Row(claim, computed.values[claim.key])
        for claim in claims
    ]
