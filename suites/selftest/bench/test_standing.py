"""What the laws say of an implementation before its time is taken."""

import pytest

from kvproof_reports.records import RecordError, RunWriter
from kvproof_suites.bench.standing import laws_of_run, standing


def law(outcome, id="G18", name="mine"):
    return {"law": id, "implementation": name, "outcome": outcome}


@pytest.mark.parametrize(
    ("laws", "verified", "broken", "said"),
    [
        ([law("verified"), law("refused", "G1")], True, False, None),
        ([], False, False, "no law of its kernel was verified"),
        ([law("refused"), law("not_run")], False, False, "no law of its kernel was verified"),
        ([law("verified", name="other")], False, False, "no law of its kernel was verified"),
        ([law("verified", "A1")], False, False, "no law of its kernel was verified"),
        ([law("verified"), law("broken", "G1")], False, True, "law G1 is broken: what breaks a law is not timed"),
        ([law("verified"), law("error", "G1")], False, True, "law G1 is broken"),
        ([law("verified"), law("broken", "A1")], True, False, None),
        ([law("verified"), law("known_broken", "G1")], False, False, "law G1 is known to be broken"),
    ],
)
def test_a_kernel_stands_by_its_own_laws(laws, verified, broken, said):
    found = standing(laws, "mine", "kernel")
    assert (found.verified, found.broken) == (verified, broken)
    assert (found.reason or "").startswith(said or "")
    assert bool(found.reason) is bool(said)


def test_an_allocator_stands_by_the_laws_of_allocators():
    assert standing([law("verified", "A1")], "mine", "allocator").verified
    assert not standing([law("verified", "G18")], "mine", "allocator").verified


def test_a_folder_without_a_run_has_no_laws_and_a_wrong_one_is_an_error(tmp_path):
    assert laws_of_run(tmp_path) == []
    with pytest.raises(RecordError, match="no such results file"):
        laws_of_run(tmp_path / "nowhere")


def test_laws_are_read_from_a_folder_or_its_file(tmp_path):
    writer = RunWriter(tmp_path)
    writer.write("law", law="G18", sentence="x", test="t", implementation="mine", outcome="verified", seconds=0.1)
    assert laws_of_run(tmp_path) == laws_of_run(tmp_path / "results.jsonl")
    assert standing(laws_of_run(tmp_path), "mine", "kernel").verified
