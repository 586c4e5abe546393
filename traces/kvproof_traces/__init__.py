"""Request workloads: formats, readers, a generator, and replay through an allocator. Standard library only."""

from kvproof_traces.azure import read_azure
from kvproof_traces.detect import FORMATS, detect
from kvproof_traces.generate import Workload, generate
from kvproof_traces.lines import TraceError
from kvproof_traces.load import SAMPLES, Trace, load
from kvproof_traces.mooncake import read_mooncake
from kvproof_traces.native import read_native, write_native
from kvproof_traces.replay import Replay, replay
from kvproof_traces.request import FieldError, Request
from kvproof_traces.tables import BlockTables, TablesError, read_tables, write_tables

__all__ = [
    "FORMATS",
    "SAMPLES",
    "BlockTables",
    "FieldError",
    "Replay",
    "Request",
    "TablesError",
    "Trace",
    "TraceError",
    "Workload",
    "detect",
    "generate",
    "load",
    "read_azure",
    "read_mooncake",
    "read_native",
    "read_tables",
    "replay",
    "write_native",
    "write_tables",
]
