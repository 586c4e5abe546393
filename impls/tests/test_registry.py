"""Names become implementations, or an error that says what was wrong and what to do."""

import subprocess
import sys
from importlib import metadata

import pytest

from kvproof_impls import registry
from kvproof_impls.built_in import BUILT_IN, Entry
from kvproof_impls.registry import Implementation, ImplementationError, Unavailable, adapt, load, names


class Kernel:
    features = frozenset()
    version = "1.5"

    def unsupported(self, spec):
        return None

    def plan(self, spec, batch, reuse=None):
        raise NotImplementedError


class Allocator:
    version = "2.5"

    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size

    def allocate(self, seq, tokens, key=()):
        return 0


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module beside the user and steps into its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(ImplementationError) as caught:
        load("tritn")
    first, second = str(caught.value).splitlines()
    assert first == "unknown implementation 'tritn'. Did you mean 'triton'?"
    assert all(name in second for name in BUILT_IN)
    assert "package.module:factory" in second


@pytest.mark.parametrize("name", ["triton_of_mine.py", "triton_of_mine"])
def test_who_names_a_file_is_told_to_name_what_is_in_it(module, name):
    module("triton_of_mine", "")
    with pytest.raises(ImplementationError, match="module:attribute: triton_of_mine:factory") as caught:
        load(name)
    assert "Did you mean" not in str(caught.value)


def test_a_name_that_is_near_to_nothing_gets_no_guess():
    with pytest.raises(ImplementationError) as caught:
        load("zzzzzz")
    assert "Did you mean" not in str(caught.value)


def test_a_module_beside_the_user_is_found(module):
    name = module("beside_kernel", "class Kernel:\n    def plan(self, spec, batch, reuse=None): ...\n")
    found = load(f"{name}:Kernel")
    assert found.provides == "kernel"
    assert type(found.kernel).__name__ == "Kernel"


@pytest.mark.parametrize(
    ("text", "what", "error"),
    [
        ("import no_such_package_at_all\n", "failed to import", "ModuleNotFoundError: No module named 'no_such_"),
        ("def other(): ...\n", "failed to import", "AttributeError: module 'broken_one' has no attribute 'make'"),
        ("def make(): raise OSError('no licence')\n", "the factory failed", "OSError: no licence"),
        ("def make(): raise SystemExit(3)\n", "the factory failed", "SystemExit: 3"),
        ("def make(:\n", "failed to import", "SyntaxError: "),
    ],
    ids=["missing import", "missing attribute", "failing factory", "exiting factory", "bad syntax"],
)
def test_a_factory_that_fails_shows_its_own_error_in_two_lines(module, text, what, error):
    name = module("broken_one", text)
    with pytest.raises(ImplementationError) as caught:
        load(f"{name}:make")
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"{name}:make")
    assert what in first
    assert second.startswith(error)


def test_a_missing_module_says_the_line_that_installs_it(monkeypatch):
    entry = Entry("?", kernel="x:y", modules=("kvproof_no_such", "json"), extra="triton")
    monkeypatch.setattr(registry, "BUILT_IN", {"odd": entry})
    assert registry.unavailable("odd") == "needs kvproof_no_such: pip install 'kvproof[triton]'"
    with pytest.raises(Unavailable, match="odd is unavailable: needs kvproof_no_such: pip install"):
        load("odd")


def test_a_missing_device_is_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(registry, "BUILT_IN", {"odd": Entry("?", kernel="x:y", needs_cuda=True)})
    with pytest.raises(Unavailable, match="needs a CUDA device"):
        load("odd")


def test_what_is_installed_and_needs_no_device_is_available():
    assert registry.unavailable("torch") is None


def test_every_built_in_name_points_at_something_that_provides_what_it_announces():
    here = [name for name in BUILT_IN if registry.unavailable(name) is None]
    assert {"reference", "paged", "contiguous-max", "textbook", "torch"} <= set(here)
    for name in here:
        assert load(name).provides == BUILT_IN[name].provides


def test_a_distribution_without_metadata_leaves_the_version_open(monkeypatch):
    entry = Entry("?", kernel="kvproof_impls.torch_gather:TorchKernel", distribution="kvproof-no-such")
    monkeypatch.setattr(registry, "BUILT_IN", {"odd": entry})
    assert load("odd").version is None


def test_an_entry_point_is_loaded_by_its_name_and_listed_after_the_built_in_ones(module, monkeypatch):
    name = module("announced_one", "class Kernel:\n    def plan(self, spec, batch, reuse=None): ...\n")
    point = metadata.EntryPoint("theirs", f"{name}:Kernel", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "kvproof.impls" else [])
    assert names() == [*BUILT_IN, "theirs"]
    assert load("theirs").kernel is not None


@pytest.mark.parametrize("made", [Kernel, Kernel(), lambda: Kernel(), {"kernel": Kernel(), "version": "1.5"}])
def test_a_kernel_may_be_a_class_an_object_a_function_or_a_mapping(made):
    found = adapt("mine", made)
    assert isinstance(found.kernel, Kernel)
    assert (found.name, found.provides, found.version) == ("mine", "kernel", "1.5")


@pytest.mark.parametrize("made", [Allocator, lambda: {"allocator": Allocator, "version": "2.5"}])
def test_an_allocator_is_a_class_that_is_made_anew_for_every_case(made):
    found = adapt("mine", made)
    assert (found.provides, found.version) == ("allocator", "2.5")
    assert found.allocator(5, 16).num_blocks == 5


def test_both_halves_may_come_from_one_factory():
    assert adapt("mine", lambda: {"allocator": Allocator, "kernel": Kernel()}).provides == "allocator + kernel"


def test_a_finished_implementation_passes_through():
    finished = Implementation("other", kernel=Kernel())
    assert adapt("mine", lambda: finished) is finished


@pytest.mark.parametrize("made", [lambda: None, 5, {}, lambda: "text"])
def test_anything_else_is_refused_with_what_it_was_and_what_is_wanted(made):
    with pytest.raises(ImplementationError, match=r"mine gave .*, which is neither a kernel"):
        adapt("mine", made)


def test_importing_the_package_imports_no_framework():
    heavy = ["torch", "triton", "flash_attn", "flashinfer", "numpy"]
    code = f"import sys, kvproof_impls; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module_name",
    ["flash_attention", "flashinfer_wrappers", "transformers_cache", "vllm_v1", "sglang_radix", "nano_vllm"],
)
def test_an_adapter_imports_its_library_only_when_it_is_used(module_name):
    libraries = ["flash_attn", "flashinfer", "triton", "transformers", "vllm", "sglang", "nanovllm"]
    code = f"import sys; sys.modules.update(dict.fromkeys({libraries})); import kvproof_impls.{module_name}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("installed", "known"), [("0.31.9", False), ("0.32.4", True), ("0.32.0rc1", False)])
def test_a_version_that_an_adapter_was_not_written_for_is_refused_with_the_line_that_mends_it(
    monkeypatch, installed, known
):
    versions = {"lib-cpu": installed}
    monkeypatch.setattr(registry.metadata, "version", lambda name: versions.get(name) or missing(name))
    entry = Entry("?", allocator="x:y", distribution="lib", builds=("lib-cpu",), modules=("json",), versions=">=0.32")
    monkeypatch.setattr(registry, "BUILT_IN", {"odd": entry})
    refusal = f"lib {installed} is outside >=0.32, which the adapter was written for: pip install 'lib>=0.32'"
    assert registry.unavailable("odd") == (None if known else refusal)


def missing(name):
    raise metadata.PackageNotFoundError(name)


def test_what_no_extra_installs_says_how_to_get_it(monkeypatch):
    entry = Entry("?", allocator="x:y", modules=("kvproof_no_such",), install="put a checkout on PYTHONPATH")
    monkeypatch.setattr(registry, "BUILT_IN", {"odd": entry})
    assert registry.unavailable("odd") == "needs kvproof_no_such: put a checkout on PYTHONPATH"
