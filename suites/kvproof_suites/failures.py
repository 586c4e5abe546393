"""A failure that a person can act on: the law, what was seen, the case to paste, and what repeats it."""

from __future__ import annotations

import shlex

import pytest
from _pytest._code.code import ExceptionRepr, ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback

from kvproof_suites import options
from kvproof_suites.expectations import Expectation
from kvproof_suites.laws import LAWS
from kvproof_suites.select import implementation_of, importable_id, law_of, tier_of

STALE = "no longer known: "
"""How the story of a known failure begins that is none."""


def rewrite(
    item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException], report: pytest.TestReport, kept: list[str]
) -> None:
    """Put the story in place of the suite's own source lines, which tell the implementer nothing.

    A crash inside the implementation keeps its traceback, and has the story after it. ``--tb`` gives everything back.
    ``kept``: lines about the files that repeat the failure.
    """
    if (law := law_of(item)) is None or item.config.option.tbstyle != "auto":
        return
    if excinfo.errisinstance(AssertionError):
        told = f"{headline(law)}\n\n{indent(str(excinfo.value))}\n\n{footer(item, kept)}"
        report.longrepr = story(item, headline(law), told)
    else:
        told = f"{headline(law)}\n\n{footer(item, kept)}"
        if isinstance(report.longrepr, ExceptionRepr):
            report.longrepr.addsection("kvproof", told)  # of the failure itself: it goes into the record as well
        else:
            report.sections.append(("kvproof", told))


def story(item: pytest.Item, first: str, told: str) -> ReprExceptionInfo:
    """In pytest's own shape, so that JUnit and the list of failures show ``first``, and xdist's workers can send it."""
    path, line, _ = item.location
    trace = ReprTraceback([ReprEntryNative([f"{told}\n"])], None, style="native")
    return ReprExceptionInfo(reprtraceback=trace, reprcrash=ReprFileLocation(path, (line or 0) + 1, first))


def tell_unexpected_pass(item: pytest.Item, entry: Expectation, report: pytest.TestReport) -> None:
    first = f"{STALE}{entry.where} lists this as {entry.status}, and it passes: remove the entry, or narrow it"
    report.longrepr = story(item, first, f"{first}\n\n  reason given: {entry.reason}\n\n{footer(item, [])}")


def headline(law: str) -> str:
    return f"{law} {LAWS[law].title} is broken: {LAWS[law].sentence}"


def indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def footer(item: pytest.Item, kept: list[str]) -> str:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec else None
    told = [f"case:    {case!r}"] if case is not None else []
    return "\n".join([*told, *kept, f"repeat:  {repeat_command(item)}", f"law:     kvproof laws {law_of(item)}"])


def repeat_command(item: pytest.Item) -> str:
    """Runs this one test again, from any folder in which kvproof is installed."""
    seed, tier = options.value(item.config, "seed"), options.TIERS[tier_of(item)]
    words = [
        "pytest",
        "--pyargs",
        importable_id(item),
        f"--impl={implementation_of(item)}",
        f"--device={options.value(item.config, 'device')}",
    ]
    words = [word for word in words if word != "--device=None"]
    return shlex.join([*words, *([f"--seed={seed}"] if seed else []), *([f"--tier={tier}"] if tier != "smoke" else [])])
