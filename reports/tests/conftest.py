"""A made-up run that holds every kind of record, hostile names included."""

import shutil

import pytest

from kvproof_reports.mlflow_client import connect, quiet
from kvproof_reports.records import RunWriter

ENVIRONMENT = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "triton": "3.8.0",
    "platform": "Linux x86_64",
    "cpu": "made-up CPU",
    "num_cpus": 2,
    "gpu": None,
    "git_commit": "0123abc",
    "kvproof": "0.1.0",
}
IMPLEMENTATIONS = (
    ("torch", "2.13.0", "kernel", "gathers through the block table, then SDPA"),
    ("triton", "3.8.0", "kernel", "our Triton kernels"),
    ("paged", "0.1.0", "allocator", "our block allocator"),
    ("contiguous", "0.1.0", "allocator", "reserves the maximum length for every sequence"),
)
LAWS = (
    ("G01", "Every visible token is found, and no other."),
    ("G18", "A token counts once, whatever the block table looks like."),
    ("A04", "A failed allocate leaves the state as it was."),
)
SHAPE = {
    "batch": 4,
    "context_len": 1024,
    "num_q_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "dtype": "float32",
    "device": "cpu",
}


class RunBuilder:
    """Writes a run a piece at a time; ``speed`` divides every time, ``hostile`` goes into names and reasons."""

    def __init__(self, folder, hostile=""):
        self.writer = RunWriter(folder)
        self.hostile = hostile

    def session(self, **changes):
        entries = [
            {"name": name + self.hostile, "version": version, "provides": provides, "summary": summary}
            for name, version, provides, summary in IMPLEMENTATIONS
        ]
        fields = {
            "implementations": entries,
            "tier": "smoke",
            "seed": 7,
            "device": "cpu",
            "command": ["pytest", "suites/", "--impl=torch,triton,paged,contiguous"],
            "environment": ENVIRONMENT,
        }
        return self.writer.write("session", **{**fields, **changes})

    def law(self, law, implementation, outcome="verified", test="t1", **fields):
        sentence = dict(LAWS)[law]
        return self.writer.write(
            "law",
            law=law,
            sentence=sentence + self.hostile,
            test=f"suites/kernel/test_laws.py::test_law[{test}]",
            implementation=implementation + self.hostile,
            outcome=outcome,
            seconds=0.1,
            **fields,
        )

    def decode(self, implementation="torch", table="identity", block_size=16, median_ms=2.0, **changes):
        fields = {
            "group": "decode",
            "implementation": implementation + self.hostile,
            "table": table,
            "block_size": block_size,
            **SHAPE,
            "timed": True,
            "verified": True,
            "median_ms": median_ms,
            "q1_ms": median_ms * 0.95,
            "q3_ms": median_ms * 1.1,
            "num_samples": 50,
            "tokens_per_second": SHAPE["batch"] / median_ms * 1e3,
            "gb_per_second": 33.6 / median_ms,
            "roof_gb_per_second": 25.0,
            "share_of_roof": 33.6 / median_ms / 25.0,
            "plan_ms": 0.02,
        }
        return self.writer.write("benchmark", **{**fields, **changes})

    def untimed(self, implementation="triton", block_size=16):
        resources = [
            {"target": target, "registers": 168, "spill_bytes": 0, "shared_bytes": 34816, "num_warps": 4}
            for target in ("sm_80", "sm_90")
        ]
        return self.writer.write(
            "benchmark",
            group="decode",
            implementation=implementation + self.hostile,
            table="identity",
            block_size=block_size,
            **SHAPE,
            timed=False,
            reason="runs in Triton's interpreter on this machine" + self.hostile,
            verified=True,
            resources=resources,
        )

    def allocator(self, implementation="paged", operation="append", block_size=16, ns_per_token=210.0):
        return self.writer.write(
            "benchmark",
            group="allocator",
            implementation=implementation + self.hostile,
            operation=operation,
            block_size=block_size,
            device="cpu",
            timed=True,
            verified=True,
            median_ms=0.21,
            q1_ms=0.2,
            q3_ms=0.23,
            num_samples=40,
            ns_per_token=ns_per_token,
        )

    def serving(self, implementation="paged", share=30, **figures):
        return self.writer.write(
            "benchmark",
            group="allocator",
            implementation=implementation + self.hostile,
            operation=f"serve, {share}% shared",
            block_size=16,
            batch=256,
            device="cpu",
            timed=True,
            verified=True,
            median_ms=0.03,
            q1_ms=0.03,
            q3_ms=0.03,
            num_samples=3,
            **{
                "ns_per_append": 61.0,
                "ns_per_append_stable": 9.5,
                "us_per_admit": 14.2,
                "us_per_admit_p99": 40.0,
                "us_per_free": 4.8,
                "us_per_step": 15.6,
                "bytes_per_block": 32.0,
                "step_tensors_included": True,
                "hit_rate": 0.384,
                "min_free_blocks": 18171,
                **figures,
            },
        )

    def replay(self, implementation="paged", **changes):
        fields = {
            "trace": "sample.jsonl" + self.hostile.replace("/", ""),
            "implementation": implementation + self.hostile,
            "block_size": 16,
            "num_blocks": 4096,
            "num_requests": 2000,
            "num_finished": 1998,
            "num_rejected": 2,
            "num_preemptions": 3,
            "mean_running": 31.5,
            "peak_running": 48,
            "waste": 0.04,
            "hit_rate": None,
            "allocator_seconds": 0.84,
        }
        return self.writer.write("replay", **{**fields, **changes})

    def end(self, exit_code=1):
        return self.writer.write("end", exit_code=exit_code, verdict="broken", counts={"verified": 9}, seconds=12.5)

    def everything(self, speed=1.0):
        """A whole run: one implementation conforms, one is broken, one known broken, one never verified."""
        self.session()
        for test in ("fp16", "fp32"):
            self.law("G01", "torch", test=test, error_to_bound=0.31)
            self.law("G18", "torch", test=test)
            self.law("G01", "triton", test=test)
        self.law("G18", "torch", "refused", test="fp8", reason="declares no fp8" + self.hostile)
        self.law(
            "G18",
            "triton",
            "broken",
            test="chunked",
            reason="position 17 was read twice\n(sequence 0, block 1, slot 1)" + self.hostile,
            case="Case(block_size=16, context_lens=[18], seed=3)" + self.hostile,
            error_to_bound=37.5,
        )
        self.law("A04", "paged", "known_broken", reason="keeps blocks; see the expectations file")
        self.law("A04", "contiguous", "not_run", reason="needs a CUDA device")
        for table, tax in (("dense", 0.9), ("identity", 1.0), ("shuffled", 1.08), ("churned", 1.12)):
            for block_size in (8, 16, 32, 64, 128, 256):
                self.decode("torch", table, block_size, median_ms=tax * (2.0 + 16 / block_size) / speed)
        self.untimed()
        self.allocator("paged", "append")
        self.allocator("paged", "free", ns_per_token=12.0)
        self.serving()
        self.replay()
        self.replay("contiguous", waste=0.71, mean_running=9.2, peak_running=13, num_preemptions=0)
        self.end()
        return self.writer.folder


@pytest.fixture
def build(tmp_path):
    """build(name, hostile="") -> RunBuilder in a folder of that name."""
    return lambda name, hostile="": RunBuilder(tmp_path / name, hostile)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """Making one takes MLflow seconds."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    with quiet():
        connect(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(empty_database, tmp_path):
    """The URI of an empty one."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path / 'mlflow.db')}"
