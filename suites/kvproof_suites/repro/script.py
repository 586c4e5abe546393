"""The script itself: the calls of a failing test in order, on shapes and data of their own, and what must come out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from typing import Any

import torch

from kvproof_impls.built_in import BUILT_IN
from kvproof_impls.registry import ENTRY_POINT_GROUP
from kvproof_suites.outcome import Element
from kvproof_suites.repro.embed import UNPACK, Data
from kvproof_suites.repro.recorder import Call, Copied, Launched, Planned, Written
from kvproof_suites.repro.write_checks import WRITES

FIELDS_OF_BATCH = ("block_tables", "context_lens", "query_start", "slot_mapping")


@dataclasses.dataclass(frozen=True)
class Failure:
    """What a script is made from."""

    title: str
    story: str
    implementation: str
    version: str | None
    device: str
    calls: Sequence[Call]
    elements: Sequence[Element] = ()
    judged: int = -1
    """Which of the launches the elements belong to, -1: the last."""
    same_bits: bool = False


def render(failure: Failure) -> str:
    """The whole script; it imports torch and the implementation only."""
    data = Data()
    body = Body(data)
    for call in failure.calls:
        body.add(call)
    parts = [
        introduction(failure),
        HEAD.format(device=failure.device.partition(":")[0], target=import_path(failure.implementation)),
        wrong_elements(failure),
        f"SAME_BITS = {failure.same_bits}\n",
        *dataclasses_of(failure.calls),
        UNPACK,
        LOAD,
        WRITES if any(isinstance(call, Written | Copied) for call in failure.calls) else "",
        "\ndef run(kernel):\n" + '    """The calls of the failing test, in order; gives what came out of each."""\n',
        "".join(f"    {line}\n" if line else "\n" for line in ("seen = []", *body.lines, "return seen")),
        CHECK,
        "\n" + data.source(),
        MAIN,
    ]
    return "\n".join(part.rstrip("\n") + "\n" if part.strip() else part for part in parts)


def introduction(failure: Failure) -> str:
    version = f" {failure.version}" if failure.version else ""
    setting = f"{failure.implementation}{version}, torch {torch.__version__}, {failure.device}"
    told = failure.story.replace("\\", "\\\\").replace('"""', "'''")
    usage = (
        "Needs torch and the implementation, nothing else. Exits 1 while the failure is there, 0 when it is gone, and\n"
        "125, which `git bisect run` passes over, where the implementation can't be loaded. Another one can be named,\n"
        "package.module:factory; errors are bounded by what this one declares."
    )
    return f'"""{failure.title}\n\nSeen with {setting}:\n\n{told}\n\n{usage}\n"""\n'


def import_path(name: str) -> str:
    """package.module:attribute of an implementation's kernel, whatever it is called here."""
    if name in BUILT_IN:
        return BUILT_IN[name].kernel or name
    announced = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return next((point.value for point in announced if point.name == name), name)


def wrong_elements(failure: Failure) -> str:
    """Which elements to look at, as the rows of a table."""
    launches = [call for call in failure.calls if isinstance(call, Launched)]
    which = failure.judged % len(launches) if launches else 0
    rows = [
        f"    ({which}, {e.output!r}, {e.at}, {number(e.want)}, {number(e.bound)}),  # got {e.got:.6g}\n"
        for e in failure.elements
    ]
    return "WRONG = [  # launch, output, index, want, largest error\n" + "".join(rows) + "]\n"


def number(value: float) -> str:
    return f'float("{value}")' if value != value or value in (float("inf"), -float("inf")) else repr(value)


def dataclasses_of(calls: Sequence[Call]) -> list[str]:
    """Local copies of the contract's shapes, computed properties included; a kernel reads attributes only."""
    planned = next((call.plan for call in calls if isinstance(call, Launched)), None)
    planned = planned or next((call for call in calls if isinstance(call, Planned)), None)
    spec = planned.spec if planned else next((call.spec for call in calls if isinstance(call, Written)), None)
    shapes = [("KVPools", ["key", "value", "key_scale", "value_scale"], False)]
    if planned:
        shapes.append(("PagedBatch", attributes(planned.batch), False))
    if spec:
        shapes.append(("AttentionSpec", attributes(spec), True))
    return [
        f"\n@dataclass(frozen=True{'' if hashable else ', eq=False'})\nclass {name}:\n"
        + "".join(f"    {field}: Any\n" for field in fields)
        for name, fields, hashable in shapes
    ]


def attributes(shape: Any) -> list[str]:
    """The fields of a dataclass, and its properties."""
    computed = [name for name, kind in vars(type(shape)).items() if isinstance(kind, property)]
    return [*(field.name for field in dataclasses.fields(shape)), *computed]


class Body:
    """Statements for one call after another; what two calls share is written once."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.lines: list[str] = []
        self._names: dict[Any, str] = {}
        self._count: dict[str, int] = {}

    def add(self, call: Call) -> None:
        if isinstance(call, Planned):
            self.plan(call)
        elif isinstance(call, Launched):
            self.launch(call)
        elif isinstance(call, Written):
            self.write(call)
        else:
            self.copy(call)

    def plan(self, call: Planned) -> str:
        if call not in self._names:
            reuse = f", reuse={self.plan(call.reuse)}" if call.reuse else ""
            arguments = f"{self.spec(call.spec)}, {self.batch(call.batch)}{reuse}"
            self.assign(call, "launch", [f"kernel.plan({arguments})"])
        return self._names[call]

    def launch(self, call: Launched) -> None:
        launch, blocks = self.plan(call.plan), call.plan.batch.block_tables.unique().tolist()
        query, pools = self.data.tensor("query", call.query), self.pools(call.pools, blocks)
        given = call.given
        out = (
            ""
            if given is None
            else f", torch.full({tuple(given.shape)}, torch.nan, dtype={given.dtype}, device=DEVICE)"
        )
        want = (call.plan.batch.num_tokens, call.plan.spec.num_q_heads, call.plan.spec.value_dim_value)
        self.lines.append(f"seen.append(shaped({launch}({query}, {pools}{out}), {want}, {call.query.dtype}))")

    def write(self, call: Written) -> None:
        slots = self.data.ints(call.slot_mapping)
        pools = self.pools(call.pools, (call.slot_mapping // call.pools.key.shape[1]).unique().tolist())
        key, value = self.data.tensor("new_key", call.key), self.data.tensor("new_value", call.value)
        self.lines.append(f"check_write(kernel, {self.spec(call.spec)}, {key}, {value}, {pools}, {slots})")

    def copy(self, call: Copied) -> None:
        pools = self.pools(call.pools, {block for pair in call.copies for block in pair})
        self.lines.append(f"check_copy(kernel, {pools}, {call.copies})")

    def spec(self, spec: Any) -> str:
        if spec not in self._names:
            told = [f"    {name}={getattr(spec, name)!r}," for name in attributes(spec)]
            self.assign(spec, "spec", ["AttentionSpec(", *told, ")"])
        return self._names[spec]

    def batch(self, batch: Any) -> str:
        if id(batch) not in self._names:
            told = []
            for name in attributes(batch):
                value = getattr(batch, name)
                told.append(f"    {name}={self.data.ints(value) if isinstance(value, torch.Tensor) else repr(value)},")
            self.assign(id(batch), "batch", ["PagedBatch(", *told, ")"])
        return self._names[id(batch)]

    def pools(self, pools: Any, blocks: Any) -> str:
        if id(pools) not in self._names:
            self.assign(id(pools), "pools", ["KVPools(", *self.parts(pools, blocks), ")"])
        return self._names[id(pools)]

    def parts(self, pools: Any, blocks: Any) -> list[str]:
        """The arguments of ``KVPools``."""
        told = {}
        for name in ("key", "value", "key_scale", "value_scale"):
            part = getattr(pools, name, None)
            told[name] = "None" if part is None else self.data.tensor(name, part, blocks)
        if pools.value.data_ptr() == pools.key.data_ptr():  # latent attention: a part of the keys
            self.assign((id(pools), "key"), "key", [told["key"]])
            told["key"] = self._names[id(pools), "key"]
            told["value"] = f"{told['key']}[..., :{pools.value.shape[-1]}]"
        return [f"    {name}={expression}," for name, expression in told.items()]

    def assign(self, what: Any, name: str, lines: list[str]) -> None:
        self._count[name] = number = self._count.get(name, 0) + 1
        self._names[what] = name if number == 1 else f"{name}_{number}"
        self.lines += [f"{self._names[what]} = {lines[0]}", *lines[1:]]


HEAD = """
import base64
import importlib
import os
import sys
import zlib
from dataclasses import dataclass
from typing import Any

import torch

DEVICE = "{device}"
IMPLEMENTATION = "{target}"
"""

LOAD = '''
def load(target):
    """The kernel behind package.module:attribute: itself, a class or factory of it, or one half of a pair."""
    sys.path.insert(0, os.getcwd())
    module, _, path = target.partition(":")
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        print(f"{target} can't be loaded: {error}", file=sys.stderr)
        sys.exit(125)
    while isinstance(found, type) or not hasattr(found, "plan"):
        if isinstance(found, dict) or hasattr(found, "kernel"):
            found = found["kernel"] if isinstance(found, dict) else found.kernel
        else:
            found = found()
    return found


def shaped(result, shape, dtype):
    """(out, lse or None), and exit 1 where their shapes are not those of the contract."""
    out, lse = result if isinstance(result, (tuple, list)) else (result, None)
    if tuple(out.shape) != shape or out.dtype != dtype or (lse is not None and tuple(lse.shape) != shape[:2]):
        sys.exit(f"WRONG  the output is {out.dtype} {tuple(out.shape)}, it must be {dtype} {shape}")
    return out.double().cpu(), None if lse is None else lse.double().cpu()


def same(before, after):
    return torch.equal(before.contiguous().view(torch.uint8), after.contiguous().view(torch.uint8))


'''

CHECK = """
def faults(seen):
    for launch, name, index, want, bound in WRONG:
        got = float(seen[launch][0 if name == "out" else 1][index])
        if got != want and not abs(got - want) <= bound:
            yield f"{name}{list(index)}: got {got:.6g}, want {want:.6g} within {bound:.3g}"
    if SAME_BITS:
        for name, before, after in zip(("out", "lse"), seen[-2], seen[-1]):
            if before is not None and not same(before, after):
                rows = [row for row in range(len(before)) if not same(before[row], after[row])]
                yield f"{name} differs between two launches that must give the same bits, in query rows {rows[:8]}"
"""

MAIN = """
if __name__ == "__main__":
    found = list(faults(run(load(sys.argv[1] if len(sys.argv) > 1 else IMPLEMENTATION))))
    for fault in found:
        print("WRONG ", fault)
    print("the failure is there" if found else "the failure is gone")
    sys.exit(1 if found else 0)
"""
