"""Request workloads: formats, readers, a generator, and replay through an allocator. NumPy makes the token ids."""

from kvproof_traces.compressed import MissingCodec
from kvproof_traces.describe import Description, describe
from kvproof_traces.detect import detect
from kvproof_traces.formats import FORMATS
from kvproof_traces.generate import Workload, generate
from kvproof_traces.generate_like import generate_like
from kvproof_traces.lines import TraceError
from kvproof_traces.load import SAMPLES, Trace, load
from kvproof_traces.native import native_lines, write_native
from kvproof_traces.profiles import PROFILES, Profile
from kvproof_traces.reading import REASONS
from kvproof_traces.replay import Replay, replay
from kvproof_traces.request import FieldError, Request
from kvproof_traces.stream import Stream, stream
from kvproof_traces.tables import BlockTables, TablesError, read_tables, write_tables

__all__ = [
    "FORMATS",
    "PROFILES",
    "REASONS",
    "SAMPLES",
    "BlockTables",
    "Description",
    "FieldError",
    "MissingCodec",
    "Profile",
    "Replay",
    "Request",
    "Stream",
    "TablesError",
    "Trace",
    "TraceError",
    "Workload",
    "describe",
    "detect",
    "generate",
    "generate_like",
    "load",
    "native_lines",
    "read_tables",
    "replay",
    "stream",
    "write_native",
    "write_tables",
]
