"""Laws of kernels, cache writes and 8-bit pools, and of a kernel with an allocator: the sharpest and cheapest first."""

from __future__ import annotations

from kvproof_suites.laws.law import Law

KERNELS = (
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
        "A cache write changes exactly its slots, their scales included, a block copy exactly its destinations; -1 is "
        "nowhere.",
        "A negative index that wraps writes into the last block of whoever owns it.",
        "vllm-project/vllm#43810",
        needs="write, copy_blocks",
    ),
    Law(
        "F2",
        "write and read back",
        "What is written through the slot mapping is read back bit for bit, whatever the strides of its source; of 8 "
        "bits, as the nearest code of the number ÷ its scale, of two the even one, and a scale that is made for a row "
        "is its largest magnitude ÷ 127.",
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
        "G21",
        "common prefix",
        "Told how many leading blocks all sequences share, a kernel gives what it gives without being told, whether it "
        "reads them once or not.",
        "A cascade that reads the prefix for all queries at once masks it for none, counts it twice, or scores it by "
        "the first row's query.",
        "vllm-project/vllm#22103",
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
        "Attention over 8-bit codes is attention over what they mean, the key's and the value's scale applied once "
        "each, be it one for all, one a head or one a token.",
        "A scale that is ignored, doubled, swapped or another head's is invisible where all are 1.",
        "flashinfer-ai/flashinfer#1023",
        needs="fp8 or int8; head_scales, token_scales",
    ),
    Law(
        "Q2",
        "scales travel with their block",
        "A block copy takes the scales of its tokens along, and leaves those of heads alone.",
        "A copy of codes without their scales is another sequence's numbers.",
        "kekzl/imp#1189",
        needs="token_scales or head_scales; copy_blocks",
    ),
    Law(
        "Q4",
        "overflow is defined",
        "A value beyond the range of an 8-bit pool saturates, and a NaN stays in its own slot: in its code, or in the "
        "scale that is made of its row.",
        "A cast without a clamp turns one large activation into a NaN that every later step reads.",
        "pytorch/FBGEMM#4237",
        needs="fp8 or int8; write",
    ),
    Law(
        "D2",
        "engine",
        "Prefill in chunks, decode across boundaries, fork, diverge, free and reuse: at every step each sequence "
        "attends to its own history.",
        "Allocator and kernel are each right alone and wrong together: off by one between growing and writing.",
        "vllm-project/vllm#9532",
    ),
)
