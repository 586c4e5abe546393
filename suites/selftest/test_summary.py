"""The end of a run: counts, reasons, nearness to the bounds, time by law; short, and shorter when asked to be quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from kvproof_suites import cli, summary
from kvproof_suites.exit_codes import MEANING

README = Path(__file__).parent.parent.parent / "README.md"


class Terminal:
    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self.lines: list[str] = []
        self.markup: dict[str, Any] = {}

    def section(self, title: str, sep: str) -> None:
        self.lines.append(title)

    def write_line(self, line: str, **markup: Any) -> None:
        self.lines.append(line)
        self.markup = markup if markup else self.markup


def law(name: str, outcome: str = "verified", reason: str | None = None, **more: Any) -> dict[str, Any]:
    record = {"implementation": "mine", "law": name, "outcome": outcome, "reason": reason, "seconds": 1.0}
    return record | {"error_to_bound": None, "peak_bytes": None, "peak_device_bytes": None} | more


def shown(laws: list[dict[str, Any]], conclusion: str = "conforms: 1 verified", verbosity: int = 0) -> Terminal:
    terminal = Terminal(verbosity)
    summary.print_summary(terminal, laws, conclusion, Path("results/run"))  # type: ignore[arg-type]
    return terminal


def test_each_outcome_is_counted_and_known_failures_by_their_words() -> None:
    laws = [law("A1"), law("A2"), law("B1", "refused", "declares no fork"), law("G7", "not_run", "needs CUDA")]
    laws += [law("C1", "known_broken", f"{status}: r") for status in ("cannot", "not yet", "not yet", "broken")]
    lines = shown(laws).lines
    assert (
        "mine: 2 verified, 1 refused by declaration, 4 known broken (1 cannot, 2 not yet, 1 broken), 1 not run here"
        in lines
    )
    assert "  mine: 2 known broken: not yet: r" in lines
    assert "  mine: 1 not run here: needs CUDA" in lines


def test_the_slowest_ten_laws_come_first_with_their_time() -> None:
    laws = [law(f"A{i}", seconds=float(i)) for i in range(1, 13)] + [law("A1", seconds=20.0)]
    (line,) = [line for line in shown(laws).lines if line.startswith("slowest laws: ")]
    assert line.startswith("slowest laws: A1 mine 21.0 s, A12 mine 12.0 s, A11 mine 11.0 s")
    assert line.endswith("A4 mine 4.0 s; all 12 took 98.0 s")
    assert "A3 mine" not in line


def test_the_element_nearest_to_its_bound_is_told() -> None:
    laws = [law("G1", error_to_bound=0.25), law("G2", error_to_bound=0.5), law("G1", "broken", "r", error_to_bound=9.0)]
    assert "largest error ÷ bound of what was verified: 0.5 (G2, mine)" in shown(laws).lines


def test_the_law_that_held_most_memory_is_told() -> None:
    laws = [law("G1", peak_bytes=2 * 10**9), law("G2", peak_bytes=3 * 10**9, peak_device_bytes=10**9), law("A1")]
    lines = shown(laws).lines
    assert "most memory held: 3.00 GB (G2 mine)" in lines
    assert "most memory of the device held: 1.00 GB (G2 mine)" in lines


def test_many_reasons_are_cut_short() -> None:
    lines = shown([law("A1", "refused", f"reason {i:03}") for i in range(99)]).lines
    assert sum(line.startswith("  mine: 1 refused") for line in lines) == summary.MAX_LINES
    assert f"  and {99 - summary.MAX_LINES} more reasons in the records" in lines


def test_quiet_leaves_the_verdict_and_where_the_records_are() -> None:
    lines = shown([law("A1"), law("B1", "refused", "r")], verbosity=-1).lines
    assert lines == ["kvproof", "verdict: conforms: 1 verified", f"records: {Path('results/run/results.jsonl')}"]


def test_quiet_still_says_why_nothing_was_verified() -> None:
    assert (
        "  mine: 1 refused by declaration: on Sundays only"
        in shown([law("A1", "refused", "on Sundays only")], verbosity=-1).lines
    )


def test_a_verdict_is_green_only_when_it_conforms() -> None:
    assert shown([law("A1")]).markup["green"]
    nothing = shown([], summary.verdict({"refused": 3}, 0, 5))
    assert "verdict: nothing was verified: 3 refused by declaration" in nothing.lines
    assert (nothing.markup["green"], nothing.markup["red"]) == (False, True)


def test_too_few_verified_is_no_conformance() -> None:
    assert summary.verdict({"verified": 3}, 0, 1, least=4).startswith("verified too little: 3 verified")
    assert summary.verdict({"verified": 4}, 0, 0, least=4).startswith("conforms")
    assert summary.verdict({"verified": 3, "broken": 1}, 0, 1, least=9).startswith("does not conform")


def test_the_exit_codes_are_the_same_wherever_they_are_told() -> None:
    told = CliRunner().invoke(cli.main, ["--help"]).output
    codes = " ".join(told.partition("Exit codes: ")[2].split())
    readme = README.read_text(encoding="utf-8").partition("## Exit codes\n")[2].partition("\n## ")[0]
    for code, meaning in MEANING.items():
        short = meaning.partition(",")[0]
        assert f"{code} {short}" in codes, short
        assert f"{code} {short.partition(' error')[0]}" in readme, short
