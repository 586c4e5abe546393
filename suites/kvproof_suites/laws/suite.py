"""Laws that the suite itself obeys; they are tested beside it, and judge no implementation."""

from __future__ import annotations

from kvproof_suites.laws.law import Law

SUITE = (
    Law(
        "H1",
        "an independent oracle",
        "The oracle follows from definitions on logical sequences, and shares no code with what it judges.",
        "A reference built by the same helper as the kernel is wrong in the same way.",
        "ROCm/rocm-libraries#10625",
        tests="suites/selftest/packaging/test_floors.py",
    ),
    Law(
        "H2",
        "a comparator that can tell",
        "The data and the bound of every budget case reject zeros, the mean of V, a shift by one slot, a dropped "
        "key, a foreign block and random output.",
        "A tolerance wide enough for the kernel's bugs passes them.",
        "Xilinx/mlir-air#1427",
        tests="suites/selftest/test_controls.py",
    ),
)
