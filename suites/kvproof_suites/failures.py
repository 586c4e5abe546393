"""A failure that a person can act on: the law, what was seen, the case to paste, and the command that repeats it."""

from __future__ import annotations

import shlex

import pytest

from kvproof_suites import options
from kvproof_suites.laws import LAWS
from kvproof_suites.select import implementation_of, law_of, tier_of


def rewrite(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException], report: pytest.TestReport) -> None:
    """Put the story in place of the suite's own source lines, which tell the implementer nothing.

    A crash inside the implementation keeps its traceback, and has the story after it. ``--tb`` gives everything back.
    """
    if (law := law_of(item)) is None or item.config.option.tbstyle != "auto":
        return
    if excinfo.errisinstance(AssertionError):
        report.longrepr = f"{headline(law)}\n\n{indent(str(excinfo.value))}\n\n{footer(item)}"
    else:
        report.sections.append(("kvproof", f"{headline(law)}\n\n{footer(item)}"))


def headline(law: str) -> str:
    return f"{law} {LAWS[law].title} is broken: {LAWS[law].sentence}"


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def footer(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec else None
    told = [f"case:   {case!r}"] if case is not None else []
    return "\n".join([*told, f"repeat: {repeat_command(item)}", f"law:    kvproof laws {law_of(item)}"])


def repeat_command(item: pytest.Item) -> str:
    """Runs this one test again, from any folder in which kvproof is installed."""
    module = getattr(item, "module", None)
    node = f"{module.__name__ if module else item.path}::{item.nodeid.partition('::')[2]}"
    seed, tier = options.value(item.config, "seed"), options.TIERS[tier_of(item)]
    words = [
        "pytest",
        "--pyargs",
        node,
        f"--impl={implementation_of(item)}",
        f"--device={options.value(item.config, 'device')}",
    ]
    words = [word for word in words if word != "--device=None"]
    return shlex.join([*words, *([f"--seed={seed}"] if seed else []), *([f"--tier={tier}"] if tier != "smoke" else [])])
