"""The laws of a paged KV cache: one id, one sentence, one reason each.

The numbers follow the families A allocator, B prefix cache, C copy-on-write and moves, D scheduling, E step tensors,
F cache writes, G attention kernels. SPEC.md prints this table; every law test carries ``@pytest.mark.law(id)``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    id: str
    title: str
    sentence: str
    why: str
    """The failure that it prevents."""
    origin: str
    """A public report or text in which that failure is seen, or where the construction comes from."""
    needs: str = ""
    """The capability without which it is refused."""
    tests: str = ""
    """Where it is tested, for a law of the suite itself; the other laws are found by the marks of their tests."""
    here: str = ""
    """Why it can't be observed on a machine without a GPU; it is then reported as not run here, never as passed."""


LAWS: dict[str, Law] = {
    law.id: law
    for law in (
        Law(
            "G18",
            "needle",
            "When one key outweighs all others, the output is the value of exactly that token, for every position.",
            "A wrong block, a wrong slot, a wrong head or a token outside the mask changes the answer to another "
            "token's code, which names what was read.",
            "ours; the construction and its proof stand in SPEC.md",
        ),
        Law(
            "G19",
            "census",
            "When all weights are equal, every visible token is counted once, and nothing else is counted.",
            "A token dropped, read twice or taken from elsewhere changes a count; a mean over thousands hides it.",
            "ours; the construction stands in SPEC.md",
        ),
        Law(
            "G3",
            "relabelling",
            "Renaming physical blocks, and moving their contents along, changes no output bit.",
            "A kernel that ignores the block table or assumes neighbouring blocks is right until the pool is shuffled.",
            "huggingface/text-generation-inference#2711",
            needs="relabel_bitwise, else judged by the error budget",
        ),
        Law(
            "G2",
            "unused memory is irrelevant",
            "Bytes that no sequence owns (tails, freed blocks, the null block) change no output bit, NaN included.",
            "0 times NaN is NaN: masking the scores is not enough, V has to be masked as well.",
            "vllm-project/vllm#641",
            needs="dirty_tail for NaN inside the last block",
        ),
        Law(
            "E2",
            "padding is inert",
            "Table entries past a sequence's last block may hold anything: -1, no valid id, a poisoned block; and a "
            "step shows nothing of the steps before it.",
            "Engines reuse tables; an entry read before it is masked faults, or leads to a stranger's block.",
            "GeeeekExplorer/nano-vllm#258",
        ),
        Law(
            "F1",
            "exact footprint",
            "A cache write changes exactly its slots, a block copy exactly its destinations; -1 is nowhere.",
            "A negative index that wraps writes into the last block of whoever owns it.",
            "vllm-project/vllm#43810",
            needs="write, copy_blocks",
        ),
        Law(
            "F2",
            "write and read back",
            "What is written through the slot mapping is read back bit for bit, whatever the strides of its source.",
            "K and V arrive as slices of a fused projection; a writer that assumes packed rows stores a mixture.",
            "flashinfer-ai/flashinfer#527",
            needs="write",
        ),
        Law(
            "G1",
            "error budget",
            "Every output and LSE lies within the bound derived from the declared arithmetic and the data.",
            "Arithmetic that is not what was declared, a wrong scale, a lost rescaling.",
            "pytorch/pytorch#159247; the bound is derived in SPEC.md",
        ),
        Law(
            "G6",
            "empty rows",
            "A row that sees no key gives 0, and an LSE of minus infinity.",
            "Padding rows and fresh sequences give NaN, which spreads through every later layer.",
            "flashinfer-ai/flashinfer#4051",
            needs="empty_rows",
        ),
        Law(
            "G10",
            "head geometry",
            "Query head h reads key head h // group, for every group size and head dim that is not refused.",
            "A modulus in place of a division answers well for one group size and bleeds for the others.",
            "HazyResearch/HipKittens#22",
        ),
        Law(
            "G11",
            "sliding window",
            "With a window of w a query sees exactly the last w positions, its own included.",
            "One position too many or too few at either edge, at a block boundary or in a chunk.",
            "huggingface/transformers#39408",
            needs="window",
        ),
        Law(
            "G13",
            "options are honoured",
            "Every option that is declared changes the result as the oracle says; the others are refused.",
            "An option that is accepted and ignored gives the text of another model.",
            "sgl-project/sglang#33915",
        ),
        Law(
            "G17",
            "capacity independence",
            "The width of the table and the size of the pool change no output bit.",
            "Splits planned from capacity change results between deployments.",
            "Dao-AILab/flash-attention#1417",
            needs="capacity_bitwise, else judged by the error budget",
        ),
        Law(
            "G5",
            "determinism",
            "The same bytes in give the same bytes out.",
            "A masked load without a default, or an atomic sum, makes a failure that nobody can repeat.",
            "triton-lang/triton#737",
            needs="run_bitwise",
        ),
        Law(
            "F3",
            "64-bit addresses",
            "A block whose offset does not fit 32 bits is read like any other.",
            "An int32 product of block id and stride wraps on a large pool and reads a stranger's block, or faults.",
            "vllm-project/vllm#1486",
        ),
        Law(
            "G4",
            "batch composition",
            "A row's output does not depend on the content, the length or the number of its neighbours.",
            "Row 0's length used for all rows, or a neighbour's NaN that spreads.",
            "flashinfer-ai/flashinfer#725",
            needs="batch_bitwise, else judged by the error budget",
        ),
        Law(
            "G20",
            "inputs stay",
            "A launch leaves the pools, the query and the step tensors as they were.",
            "A kernel that clears what it must not see in the caller's pool answers well, and ruins the next sequence.",
            "ours; KernelBench tests its harness with kernels that zero their inputs",
        ),
        Law(
            "G7",
            "logit range",
            "A constant added to every logit of a row changes nothing, however large.",
            "A maximum that starts at -5e4 beats all logits below it, and the row comes out as zero.",
            "flashinfer-ai/flashinfer#4450",
        ),
        Law(
            "G8",
            "every row is written",
            "Every live row of a given output is written, and none beyond.",
            "A batch that is not launched, or a wrong stride, leaves what the buffer held before.",
            "flashinfer-ai/flashinfer#177",
            needs="out",
        ),
        Law(
            "G9",
            "splits and partitions",
            "Wherever a kernel cuts a context into tiles and partitions, every token counts once.",
            "The combination of partial results takes a fixed layout for a ragged one, or loses an empty part.",
            "Dao-AILab/flash-attention#1217",
        ),
        Law(
            "G12",
            "block-size invariance",
            "The same tokens in blocks of another size give the same answer.",
            "A kernel that assumes 16 tokens a block is right in every test that does, too.",
            "sgl-project/sglang#32902",
        ),
        Law(
            "G14",
            "plans are apart",
            "A launch gives the same after other batches were planned and run.",
            "A workspace or a table of the latest plan is read by an earlier one's launch.",
            "sgl-project/mini-sglang#103",
        ),
        Law(
            "G15",
            "strides and layouts",
            "Views that are not packed give the same bits, or are rejected.",
            "The stride of one tensor is used for another, or taken for the product of the dimensions.",
            "vllm-project/vllm#42420",
            needs="run_bitwise",
        ),
        Law(
            "Q1",
            "each scale once",
            "Attention over 8-bit codes is attention over what they mean, k_scale and v_scale applied once each.",
            "A scale that is ignored, doubled or swapped is invisible where both are 1.",
            "flashinfer-ai/flashinfer#1023",
            needs="fp8",
        ),
        Law(
            "Q4",
            "overflow is defined",
            "A value beyond the range of an 8-bit pool saturates, and a NaN stays in its own slot.",
            "A cast without a clamp turns one large activation into a NaN that every later step reads.",
            "pytorch/FBGEMM#4237",
            needs="fp8, write",
        ),
        Law(
            "D2",
            "engine",
            "Prefill in chunks, decode across boundaries, fork, diverge, free and reuse: at every step each sequence "
            "attends to its own history.",
            "Allocator and kernel are each right alone and wrong together: off by one between growing and writing.",
            "vllm-project/vllm#9532",
        ),
        Law(
            "A1",
            "conservation",
            "Free blocks and owned blocks are all blocks, each once; no sequence holds more than its tokens need.",
            "A counter that drifts ends in refused requests on an empty pool, or in blocks handed out twice.",
            "UbiquitousLearning/mllm#656",
        ),
        Law(
            "A2",
            "no double free",
            "Freeing what is already free is an error and changes nothing.",
            "A block that stands twice in the free queue is given to two sequences.",
            "sgl-project/sglang#27779",
        ),
        Law(
            "A3",
            "one writer",
            "A slot is written only by a sequence that alone owns its block.",
            "Two sequences write one slot: both texts still look fine.",
            "vllm-project/vllm#4761",
        ),
        Law(
            "A4",
            "reserved blocks are inert",
            "A reserved block is never handed out, freed, counted, written or copied; in a table it stands only where "
            "nothing is seen any more.",
            "Padding writes into the null block; whoever owns it as well reads that.",
            "vllm-project/vllm#50531",
            needs="pool_blocks above num_blocks",
        ),
        Law(
            "A5",
            "every exit releases",
            "After any number of requests have come and gone every block is free.",
            "One block leaked a request empties the pool overnight.",
            "kekzl/imp#1115",
        ),
        Law(
            "A6",
            "truthful and atomic admission",
            "can_allocate says what allocate will do, and a failure leaves the state as it was.",
            "A failed request that keeps its blocks starves all later ones.",
            "guoqingbao/xinfer#405",
        ),
        Law(
            "A7",
            "room before the write",
            "Before a token is written its slot is inside the table, at every boundary.",
            "A prompt that fills its last block exactly leaves the next token without a slot.",
            "GeeeekExplorer/nano-vllm#66",
        ),
        Law(
            "A8",
            "eviction order",
            "Blocks without content are handed out first; then cached ones that nobody owns, least recently used "
            "first, a child before its parent.",
            "A chain evicted from its head leaves blocks that are cached and can't be found.",
            "vllm-project/vllm#42656",
            needs='eviction = "lru"',
        ),
        Law(
            "A9",
            "frees meet inside a block",
            "Ranges given back one after the other, with seams inside a block, free each block once: when its last "
            "token is gone.",
            "The block at the seam is freed by both sides, and goes to two sequences.",
            "sgl-project/sglang#38941",
            needs="truncate, or window",
        ),
        Law(
            "B1",
            "keys are injective",
            "A prefix is found only by the same tokens under the same key.",
            "A hash that collides, or a salt left out of it, serves one tenant another's cache.",
            "waybarrios/vllm-mlx#444",
            needs="commit",
        ),
        Law(
            "B2",
            "hit equals miss",
            "Tokens found cached read back as the same tokens would, had they been computed anew.",
            "A stale map entry serves the blocks of whoever owned them last.",
            "ovg-project/kvcached#362",
            needs="commit",
        ),
        Law(
            "B3",
            "one token is left",
            "A full hit leaves at least one token to compute.",
            "A query of length zero yields no logits to sample from.",
            "vllm-project/vllm#3239",
            needs="commit",
        ),
        Law(
            "B4",
            "publish what is written",
            "A block is findable only when it is full and committed.",
            "A prefix found before it is computed is read as whatever was there before.",
            "NVIDIA/TensorRT-LLM#8813",
            needs="commit",
        ),
        Law(
            "B5",
            "map and block agree",
            "What is said to be cached stands in the pool, after every eviction and every rewrite.",
            "A cached block that is cut back and written anew is served under its old name.",
            "sgl-project/sglang#35270",
            needs="cached_prefix",
        ),
        Law(
            "B6",
            "a look-up is no promise",
            "Whatever happens between a look-up and the admission, what the admission finds is there; blocks that are "
            "found are not counted as room for the rest.",
            "Blocks evicted since the look-up are read as if they still held the prefix.",
            "vllm-project/vllm#17305",
            needs="commit",
        ),
        Law(
            "B8",
            "honest hits",
            "A prompt sent again is found as far as was foretold, and prompts with nothing in common are not.",
            "A cache that never hits keeps every other law, and pays for nothing.",
            "vllm-project/vllm#42948",
            needs="commit",
        ),
        Law(
            "B9",
            "a reset is total",
            "After the prefix cache is reset nothing computed before is found, whether its owner lives or not.",
            "New weights meet keys and values of the old ones.",
            "vllm-project/vllm-omni#6739",
            needs="reset_prefix_cache",
        ),
        Law(
            "B10",
            "sharing is identity",
            "The blocks that a step says all rows share are the same physical blocks in every row.",
            "A cascade reads the common prefix once for all rows; one guessed from reference counts is a stranger's.",
            "ours",
            needs="append_step",
        ),
        Law(
            "C1",
            "copy-on-write isolation",
            "After a fork no branch changes a slot that another branch can read.",
            "Beams and samples overwrite one another's last block.",
            "vllm-project/vllm#344",
            needs="fork",
        ),
        Law(
            "C2",
            "copies in any order",
            "No copy's destination is another copy's source or destination, so that all may be made at once.",
            "A kernel makes copies in parallel; two that are right in one order only leave either block torn.",
            "ggml-org/llama.cpp#14189",
            needs="fork",
        ),
        Law(
            "D1",
            "preemption is invisible",
            "A sequence that was swapped out or computed anew, at any token and any number of times, reads its own "
            "history.",
            "The partial last block is left behind, or blocks come back in another order.",
            "sgl-project/sglang-jax#1010",
            needs="swap_out, swap_in; preemption by computing anew needs nothing",
        ),
        Law(
            "D3",
            "progress",
            "A request that fits into the empty pool ends, whoever else is served; one that never fits is refused "
            "alone.",
            "A reserve that appends may not touch, or a swap without room, stops the engine for good.",
            "vllm-project/vllm#546",
        ),
        Law(
            "D4",
            "exact rollback",
            "After truncate a sequence is what it would have been had it never grown.",
            "Rejected speculative tokens stay readable, or their blocks stay owned.",
            "huggingface/transformers#47433",
            needs="truncate",
        ),
        Law(
            "D5",
            "in-flight fence",
            "A slot that was handed out stays its sequence's until its write has landed.",
            "A step in flight writes where the sequence no longer reads.",
            "vllm-project/vllm#45357",
        ),
        Law(
            "E3",
            "graph replay",
            "A replayed graph gives what an eager launch on the new contents gives.",
            "A plan that is not refreshed replays with the lengths and tables of the step that was captured.",
            "alibaba/rtp-llm#378",
            needs="graph, out",
            here="there is no graph to capture without a CUDA device",
        ),
        Law(
            "E4",
            "staging lifetime",
            "A step that waits on the device is not reached by the preparation of the next.",
            "One pinned buffer is reused before its copy has run.",
            "vllm-project/vllm#32799",
            here="there is no stream to be early or late on without a CUDA device",
        ),
        Law(
            "E1",
            "slot mapping is the definition",
            "The slot of token t is table[t // B]·B + t % B for every row of a step; lengths and query starts agree "
            "with it; a step gives what its rows' single appends would have given.",
            "Slots counted on from the last one are right until a sequence's next block lies elsewhere.",
            "huggingface/text-generation-inference#2711",
            needs="append_step",
        ),
        Law(
            "E5",
            "violations are loud",
            "Unknown ids, duplicate ids and impossible numbers are errors, never silent.",
            "An id admitted twice loses the blocks of the first.",
            "peers differ: silent no-op, silent reuse, assertion",
        ),
        Law(
            "H1",
            "an independent oracle",
            "The oracle follows from definitions on logical sequences, and shares no code with what it judges.",
            "A reference built by the same helper as the kernel is wrong in the same way.",
            "ROCm/rocm-libraries#10625",
            tests="suites/selftest/packaging/test_floors.py",
        ),
        Law(
            "H2",
            "a comparator that can tell",
            "The data and the bound of every budget case reject zeros, the mean of V, a shift by one slot, a dropped "
            "key, a foreign block and random output.",
            "A tolerance wide enough for the kernel's bugs passes them.",
            "Xilinx/mlir-air#1427",
            tests="suites/selftest/test_controls.py",
        ),
    )
}

NOT_LAWS: dict[str, str] = {
    "B7": "that a hit is the intersection of all groups and components: the contract has one table a sequence; an "
    "allocator with a table a group of layers, and the window of each, would be needed",
    "G16": "that all configurations of one kernel agree: the contract shows one launch a plan; a method that lists a "
    "kernel's variants would be needed. Every implementation is held to the oracle by itself",
    "Q2": "that scales travel with their block: needs scales a slot in `KVPools.key_scale`, which no kernel has yet",
    "Q3": "that calibration sees only real data: the contract hands scales over, and never asks for them",
}
"""Properties of the catalogue that the contract does not show, and what would be needed."""
