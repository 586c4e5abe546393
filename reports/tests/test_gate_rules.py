"""A rules file: what it may say, and what it is told when it says something else."""

import pytest

from kvproof_reports import gate_rules
from kvproof_reports.gate_rules import DEFAULT_ACTIONS, Rules, RulesError, read_rules


@pytest.fixture
def rules(tmp_path):
    def write(text):
        path = tmp_path / "gate.toml"
        path.write_text(text)
        return read_rules(path)

    return write


def test_without_a_file_what_got_worse_fails_and_what_is_unclear_warns():
    assert {rule: Rules().action(rule, "triton") for rule in gate_rules.RULES} == DEFAULT_ACTIONS
    assert DEFAULT_ACTIONS == {"law_broken": "fail", "coverage_lost": "fail", "slower": "fail", "ambiguous": "warn"}
    assert (Rules().threshold("triton"), Rules().confidence) == (0.03, 0.95)


def test_the_example_of_the_documentation_is_a_rules_file(rules):
    example = gate_rules.__doc__.partition("\n\n")[2].rpartition("What is not given")[0]
    found = rules(example)
    assert {rule: found.action(rule, "triton") for rule in gate_rules.RULES} == DEFAULT_ACTIONS
    assert found.action("slower", "torch") == "off"


def test_an_exception_holds_for_its_implementation_and_leaves_the_rest_as_it_is(rules):
    found = rules('[slower]\nthreshold = 0.1\n[implementation."my_kernel:factory".slower]\naction = "warn"\n')
    assert (found.action("slower", "my_kernel:factory"), found.threshold("my_kernel:factory")) == ("warn", 0.1)
    assert (found.action("slower", "triton"), found.threshold("triton")) == ("fail", 0.1)


WRONG = {
    "an unknown rule": ("[slowr]\n", r"gate.toml: unknown key 'slowr'; did you mean 'slower'\?"),
    "an unknown key": ("[slower]\ntreshold = 0.1\n", r"\[slower\]: unknown key 'treshold'; did you mean 'threshold'\?"),
    "a key of another rule": (
        "[law_broken]\nthreshold = 0.1\n",
        r"\[law_broken\]: unknown key 'threshold'; known: action",
    ),
    "an unknown action": ('[ambiguous]\naction = "ignore"\n', r"'ignore' is not one of fail, warn, off"),
    "per cent": ("[slower]\nthreshold = 3\n", r"\[slower\]: threshold 3 is not a share above 0 and up to 1"),
    "a text": ('[slower]\nconfidence = "high"\n', r"confidence 'high' is not a share"),
    "certainty": ("[slower]\nconfidence = 1.0\n", r"confidence 1.0 is not a share above 0 and up to 0.9999"),
    "no table": ("slower = 0.1\n", r"\[slower\]: 0.1 is not a table"),
    "a wrong exception": ("[implementation.cpu.slow]\n", r"\[implementation.cpu\]: unknown key 'slow'; did you mean"),
    "a wrong key of one": (
        "[implementation.cpu.slower]\nconfidence = 0.9\n",
        r"\[implementation.cpu.slower\]: unknown key 'confidence'; known: action, threshold",
    ),
    "no TOML": ("[slower\n", r"gate.toml: .*line 1"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_means_nothing_is_named_with_file_table_and_key(rules, text, message):
    with pytest.raises(RulesError, match=message):
        rules(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RulesError, match=r"none.toml: No such file"):
        read_rules(tmp_path / "none.toml")
