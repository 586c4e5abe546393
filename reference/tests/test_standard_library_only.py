"""The oracle imports nothing but the standard library: tried in a process where nothing else can be imported."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvproof_reference

PACKAGE = Path(kvproof_reference.__file__).parent
BLOCK_OTHERS = """
import sys

class OnlyTheStandardLibrary:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top != "kvproof_reference":
            raise ImportError(f"{name} is not in the standard library")

sys.meta_path.insert(0, OnlyTheStandardLibrary())
sys.path.append(sys.argv[1])
"""
SMOKE = {
    "allocator": "a = m.ReferenceAllocator(4, 2); a.allocate(1, [1, 2, 3]); assert a.check() == []",
    "arithmetic": "assert m.Arithmetic.declared({}, 'float16').p == 'float16'",
    "attention": "assert m.attend([[[0.0]]], [[[1.0]]], [[[5.0]]], scale=1.0) == ([[[5.0]]], [[0.0]])",
    "attention_row": "assert m.score_row([2.0], [[3.0]], [[1.0]], value_dim=1, scale=1.0).scores == [6.0]",
    "blocks": "assert m.chain_hash(0, (1,), (), 1) != m.chain_hash(0, (2,), (), 1)",
    "budget": (
        "from kvproof_reference.attention_row import score_row; from kvproof_reference.arithmetic import Arithmetic; "
        "assert m.output_bounds(score_row([2.0], [[3.0]], [[1.0]], value_dim=1, scale=1.0), Arithmetic())[0] > 0"
    ),
    "capacity": (
        "from kvproof_reference.model_shape import ModelShape; "
        "assert m.device_capacity(ModelShape(1, 1, 1), memory_bytes=9999, weight_bytes=0, max_model_len=1)"
    ),
    "formats": "assert m.number_format('float16').max == 65504",
    "invariants": "assert all(law.sentence for law in m.INVARIANTS)",
    "model_shape": "assert m.shape_from_config({'n_layer': 1, 'n_head': 1, 'n_embd': 8}).head_dim == 8",
    "sizing": "assert m.num_blocks_for(17, 16) == 2",
}


def run_isolated(code):
    """Without site-packages and environment: -S -I."""
    command = [sys.executable, "-S", "-I", "-W", "error", "-c", BLOCK_OTHERS + code, str(PACKAGE.parent)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_module_has_a_smoke_run():
    assert sorted(SMOKE) == sorted(module.name for module in pkgutil.iter_modules([str(PACKAGE)]))


@pytest.mark.parametrize("module", SMOKE)
def test_a_module_works_with_the_standard_library_alone(module):
    done = run_isolated(f"import kvproof_reference.{module} as m\n{SMOKE[module]}\nprint('worked')")
    assert (done.returncode, done.stdout) == (0, "worked\n"), done.stderr


@pytest.mark.parametrize("other", ["torch", "numpy", "pytest", "kvproof_impls"])
def test_the_block_is_real(other):
    done = run_isolated(f"import {other}")
    assert f"ImportError: {other} is not in the standard library" in done.stderr
