"""What a run tells of the machine and of the laws, and what a comparison with another run may rest on."""

import dataclasses

import pytest

from kvproof_reports.schema import SESSION
from kvproof_suites import environment, laws
from kvproof_suites.laws import LAWS


def test_every_fact_that_a_session_may_hold_is_told():
    assert set(environment.describe("cpu")) == set(SESSION["environment"].fields or {})


def test_a_run_on_a_cpu_has_no_gpu_driver_or_cuda():
    told = environment.describe("cpu")
    assert [told[name] for name in ("gpu", "driver", "cuda")] == [None] * 3


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build  (a@b)\nGCC version: 12\n",
            "570.86",
        ),
        ("6.12.12\n", "6.12.12"),
    ],
    ids=["nvidia", "nvidia-open", "amdgpu"],
)
def test_the_driver_is_read_from_what_its_module_says(tmp_path, monkeypatch, text, version):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(environment, "DRIVERS", (tmp_path / "none", tmp_path / "version"))
    assert environment.driver_version("cuda:0") == version


def test_an_unknown_driver_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "DRIVERS", (tmp_path / "none",))
    assert environment.driver_version("cuda") is None


def test_the_version_of_the_laws_changes_with_what_they_say_and_not_with_their_order(monkeypatch):
    before = laws.version()
    assert before.startswith(f"{len(LAWS)} laws, ")
    assert environment.describe("cpu")["spec"] == before

    monkeypatch.setattr(laws, "LAWS", dict(reversed(LAWS.items())))
    assert laws.version() == before
    law = LAWS["G18"]
    for other, same in (({"sentence": "Anything goes."}, False), ({"why": "for fun"}, True)):
        monkeypatch.setattr(laws, "LAWS", {**LAWS, "G18": dataclasses.replace(law, **other)})
        assert (laws.version() == before) is same
