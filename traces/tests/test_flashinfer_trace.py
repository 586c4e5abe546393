"""FlashInfer-Bench workloads: lengths lie in a safetensors file, and where they can't be had that is said."""

from __future__ import annotations

import json
import struct

import pytest

from kvproof_traces import SAMPLES, TraceError, load

DEFINITION = "gqa_paged_decode_h32_kv8_d128_ps64"


def safetensors(path, **tensors):
    """A file of int32 tensors, as the format's description has it."""
    header, data = {}, b""
    for name, values in tensors.items():
        packed = struct.pack(f"<{len(values)}i", *values)
        header[name] = {"dtype": "I32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def workload(folder, definition=DEFINITION, names=("kv_indptr",)):
    inputs = {name: {"type": "safetensors", "path": "blob/w.safetensors", "tensor_key": name} for name in names}
    row = {"definition": definition, "solution": None, "evaluation": None, "workload": {"axes": {}, "inputs": inputs}}
    path = folder / "workloads" / "gqa.jsonl"
    path.parent.mkdir()
    (folder / "blob").mkdir()
    path.write_text(json.dumps(row) + "\n")
    return path


def test_without_the_tensors_the_file_that_holds_the_lengths_is_named():
    with pytest.raises(TraceError, match=r":1: inputs.kv_indptr: lengths lie in made_up.safetensors, which is not"):
        load(SAMPLES / "flashinfer_trace_workload.jsonl")


def test_each_sequence_of_the_batch_is_a_request(tmp_path):
    path = workload(tmp_path)
    safetensors(tmp_path / "blob" / "w.safetensors", other=[9], kv_indptr=[0, 3, 4])
    trace = load(path)
    assert trace.format == "flashinfer-trace"
    found = [(r.request_id, r.num_prompt_tokens, r.num_output_tokens) for r in trace.requests]
    assert found == [("r0.0", 192, 1), ("r0.1", 64, 1)]
    assert any("rounded up to whole pages" in note for note in trace.notes)


def test_the_last_page_makes_lengths_exact(tmp_path):
    path = workload(tmp_path, names=("kv_indptr", "kv_last_page_len"))
    safetensors(tmp_path / "blob" / "w.safetensors", kv_indptr=[0, 3, 4], kv_last_page_len=[1, 64])
    assert [r.num_prompt_tokens for r in load(path).requests] == [129, 64]


def test_another_number_of_last_pages_is_refused(tmp_path):
    path = workload(tmp_path, names=("kv_indptr", "kv_last_page_len"))
    safetensors(tmp_path / "blob" / "w.safetensors", kv_indptr=[0, 3, 4], kv_last_page_len=[1])
    with pytest.raises(TraceError, match="kv_last_page_len: has 1 entries for 2 sequences"):
        load(path)


def test_a_path_out_of_the_data_set_is_not_followed(tmp_path):
    path = workload(tmp_path)
    safetensors(tmp_path / "w.safetensors", kv_indptr=[0, 1])
    for name in (str(tmp_path / "w.safetensors"), "blob/../w.safetensors"):
        path.write_text(path.read_text().replace("blob/w.safetensors", name))
        with pytest.raises(TraceError, match="which is not beside the file"):
            load(path)


def test_pages_of_one_token_need_no_rounding(tmp_path):
    path = workload(tmp_path, definition="mla_paged_decode_h16_ckv512_kpe64_ps1")
    safetensors(tmp_path / "blob" / "w.safetensors", kv_indptr=[0, 300, 301])
    trace = load(path)
    assert [r.num_prompt_tokens for r in trace.requests] == [300, 1]
    assert len(trace.notes) == 1


def test_an_empty_sequence_is_a_bad_row_and_the_others_are_not(tmp_path):
    path = workload(tmp_path)
    safetensors(tmp_path / "blob" / "w.safetensors", kv_indptr=[0, 3, 3, 4])
    trace = load(path, skip_bad=True)
    assert (len(trace.requests), trace.dropped) == (2, {"no prompt": 1})


@pytest.mark.parametrize("content", [b"", b"\0" * 8, struct.pack("<Q", 2**63) + b"{}", b"\x02" + b"\0" * 7 + b"{}"])
def test_a_damaged_tensor_file_is_refused(tmp_path, content):
    path = workload(tmp_path)
    (tmp_path / "blob" / "w.safetensors").write_bytes(content)
    with pytest.raises(TraceError, match="holds no integer tensor 'kv_indptr'"):
        load(path)


def test_a_definition_without_pages_has_no_lengths(tmp_path):
    with pytest.raises(TraceError, match="definition: 'rmsnorm_h4096' names no page size"):
        load(workload(tmp_path, definition="rmsnorm_h4096"))
