"""SIGTERM, by which a machine ends a run, taken for what a person's Ctrl-C is: else what was started lives on."""

from __future__ import annotations

import signal
import threading


def end_by_a_machine_as_by_a_person() -> None:
    """Where nobody else has a use for it."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
