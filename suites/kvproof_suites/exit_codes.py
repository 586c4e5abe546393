"""What the exit code of a law run or of ``kvproof`` means; pytest's own codes, and one more."""

from __future__ import annotations

from collections.abc import Mapping

CONFORMS, LAW_BROKEN, INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR, NOTHING_VERIFIED = range(6)

MEANING: Mapping[int, str] = {
    CONFORMS: "conforms",
    LAW_BROKEN: "a law is broken, a known failure is none any more, or fewer were verified than --min-verified asks",
    INTERRUPTED: "interrupted",
    INTERNAL_ERROR: "internal error",
    USAGE_ERROR: "usage error",
    NOTHING_VERIFIED: "nothing was verified",
}
