"""OpenVINO's paged operator behind the contract: 28 inputs in their order, on the memory of the pools."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kvproof_impls import openvino_paged
from kvproof_impls.contract import AttentionSpec, KVPools
from kvproof_impls.openvino_paged import OpenVinoKernel, compiled, query_places, step_inputs


def make_spec(**options):
    return AttentionSpec(**{"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "block_size": 32} | options)


class Port:
    """A parameter or a constant of the model; its own output and that output's tensor."""

    def __init__(self, rank, name=None, value=None):
        self.rank, self.name, self.value = rank, name, value

    def output(self, index):
        return self

    def get_tensor(self):
        return self

    def set_names(self, names):
        assert names == {self.name}


@pytest.fixture
def library(monkeypatch):
    """Modules of OpenVINO that record what the operator and the compilation were given."""
    seen = SimpleNamespace(arguments=None, rt_info={}, options=None, parameters=None)

    class Operator:
        def __init__(self, arguments):
            seen.arguments = arguments

        def get_rt_info(self):
            return seen.rt_info

        def output(self, index):
            return self

    def model(results, parameters):
        seen.parameters = [port.name for port in parameters]

    def compile_model(model, device, options):
        seen.options = (device, options)

    modules = {name: ModuleType(name) for name in ("openvino", "openvino._pyopenvino", "openvino.opset13")}
    modules["openvino._pyopenvino.op"] = ModuleType("openvino._pyopenvino.op")
    top = modules["openvino"]
    top.Type = SimpleNamespace(f32="f32", f16="f16", bf16="bf16", i32="i32", dynamic="dynamic")
    top.PartialShape, top.Model = list, model
    top.Core = lambda: SimpleNamespace(compile_model=compile_model)
    modules["openvino._pyopenvino.op"]._PagedAttentionExtension = Operator
    opset = modules["openvino.opset13"]
    opset.parameter = lambda shape, kind, name: Port(len(shape), name)
    opset.constant = lambda value: Port(value.ndim, value=value)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    compiled.cache_clear()
    yield seen
    compiled.cache_clear()


def test_the_operator_gets_its_inputs_in_order(library, recorded_attention):
    compiled(make_spec(window=7, alibi_slopes=(0.5, 0.25, 0.125, 1.0), sinks=(0.0, 1.0, 2.0, 3.0)))
    names = recorded_attention.PAGED_ATTENTION_INPUTS
    assert len(library.arguments) == len(names) == 28
    for name, port in zip(names, library.arguments, strict=True):
        assert port.rank in recorded_attention.RANKS.get(name, (1,)), name
        assert port.name is None or port.name.removesuffix(".0") == name
    by_name = dict(zip(names, library.arguments, strict=True))
    assert by_name["sliding_window"].value == 7
    assert by_name["alibi_slopes"].value.tolist() == [0.5, 0.25, 0.125, 1.0]
    assert by_name["sinks"].value.shape == (1, 4, 1, 1)
    assert by_name["scale"].value == pytest.approx(8**-0.5)


@pytest.mark.parametrize(
    ("dtype", "cache", "inference"),
    [("float32", "f32", "f32"), ("float16", "f16", "f32"), ("bfloat16", "bf16", "bf16")],
)
def test_the_plugin_is_told_precisions_and_the_layout_of_the_cache(library, dtype, cache, inference):
    compiled(make_spec(dtype=dtype, value_dim=16))
    assert library.options == ("CPU", {"KV_CACHE_PRECISION": cache, "INFERENCE_PRECISION_HINT": inference})
    assert library.rt_info == {"num_k_heads": 2, "k_head_size": 8, "num_v_heads": 2, "v_head_size": 16}


def test_a_step_is_told_without_padding(paged):
    case = paged.case(make_spec(), [33, 5, 64], [2, 1, 1])
    step = {name: tensor.tolist() for name, tensor in step_inputs(case.batch).items()}
    tables = case.batch.block_tables.tolist()
    assert step["block_indices"] == [*tables[0][:2], tables[1][0], *tables[2][:2]]
    assert step["block_indices_begins"] == [0, 2, 3, 5]
    assert step["past_lens"] == [31, 4, 63]
    assert step["subsequence_begins"] == [0, 2, 3, 4]
    assert step["max_context_len"] == 64
    blocks, offsets = query_places(case.batch)
    assert offsets.tolist() == [31, 0, 4, 31]
    assert blocks.tolist() == [tables[0][0], tables[0][1], tables[1][0], tables[2][1]]


def test_a_launch_shares_the_pools_and_writes_back_what_they_hold(library, paged, monkeypatch):
    case = paged.case(make_spec(dtype="float32"), [5], [2])
    pools = KVPools(*(pool.transpose(1, 2).contiguous().transpose(1, 2) for pool in (case.pools.key, case.pools.value)))
    given = {}
    answer = torch.randn(2, 32)
    request = SimpleNamespace(
        set_tensor=given.__setitem__,
        infer=lambda: None,
        get_output_tensor=lambda index: SimpleNamespace(data=answer.numpy()),
    )
    monkeypatch.setattr(openvino_paged, "compiled", lambda spec: SimpleNamespace(create_infer_request=lambda: request))
    monkeypatch.setattr(openvino_paged, "shared", lambda tensor: tensor)
    got = OpenVinoKernel().plan(case.spec, case.batch)(case.query, pools)
    assert torch.equal(got, answer.view(2, 4, 8))
    assert given["key_cache.0"].data_ptr() == pools.key.data_ptr()
    assert given["key_cache.0"].shape[1:] == (2, 32, 8)
    assert torch.equal(given["value"].view(2, 2, 8), case.values[0][3:])
    assert set(given) == set(library_inputs(library))


def library_inputs(library):
    compiled(make_spec())
    return library.parameters


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"block_size": 16}, "32 only"),
        ({"kv_dtype": "int8"}, "kv_dtype int8"),
        ({"k_scale": 0.5}, "scales"),
        ({"causal": False}, "not causal"),
    ],
)
def test_what_it_can_not_do_is_refused_by_name(paged, options, reason):
    spec = make_spec(**options)
    assert reason in OpenVinoKernel().unsupported(spec)
    with pytest.raises(ValueError, match=reason):
        OpenVinoKernel().plan(spec, paged.case(make_spec(), [5], [1]).batch)


def test_queries_before_the_first_position_and_pools_with_gaps_are_errors(library, paged):
    with pytest.raises(ValueError, match="before position 0"):
        step_inputs(paged.case(make_spec(), [2], [3]).batch)
    with pytest.raises(ValueError, match="key pool has strides"):
        openvino_paged.stored(torch.zeros(2, 32, 2, 8), "key")


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed here")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_installed_library_compiles_the_operator(dtype):
    ports = {port.any_name for port in compiled(make_spec(dtype=dtype, head_dim=64)).inputs}
    assert ports >= {"query", "key_cache.0", "score_aggregation_window"}
