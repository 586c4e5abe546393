"""``kvproof laws`` lists what is checked, in the order it runs, and explains one law."""

import json

import pytest
from click.testing import CliRunner

from kvproof_suites import cli
from kvproof_suites.cli.laws import modules_by_law
from kvproof_suites.laws import LAWS


def laws(*arguments):
    return CliRunner().invoke(cli.main, ["laws", *arguments])


def test_all_laws_are_listed_in_the_order_they_run():
    lines = laws().output.splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == list(LAWS)


@pytest.mark.parametrize("name", ["G18", "g18", "needle"])
def test_a_law_is_explained_by_id_or_title(name):
    shown = laws(name).output
    assert all(part in shown for part in (LAWS["G18"].sentence, LAWS["G18"].why, LAWS["G18"].origin))
    assert LAWS["G19"].sentence not in shown


def test_the_capability_a_law_needs_is_told():
    assert f"needs     {LAWS['C1'].needs}" in laws("C1").output
    assert "needs" not in laws("A1").output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("neddle", "did you mean 'needle'?"),
        ("Geom", "did you mean 'head geometry'?"),
        ("", "`kvproof laws` lists them"),
        ("xyzzy", "`kvproof laws` lists them"),
    ],
)
def test_an_unknown_law_is_answered_with_the_nearest_one(name, said):
    told = laws(name)
    assert told.exit_code == cli.USAGE_ERROR
    assert said in told.stderr


def test_json_holds_every_field():
    (law,) = json.loads(laws("A6", "--json").output)
    assert (law["id"], law["sentence"]) == ("A6", LAWS["A6"].sentence)
    assert law["tests"].split(", ") == modules_by_law()["A6"]


def test_markdown_holds_every_law_once_under_its_family_with_a_link_to_its_origin():
    text = laws("--markdown").output
    assert all(text.count(f"| **{law}** ") == 1 for law in LAWS)
    assert text.index("### A. Allocator") < text.index("**A1**") < text.index("### G. Attention kernels")
    assert "[vllm-project/vllm#641](https://github.com/vllm-project/vllm/issues/641)" in text
    assert all(line.count(" | ") == 5 for line in text.splitlines() if line.startswith("| **"))
