"""The shelf stands on its own: no other shelf, no torch, and no optional package until a report is made."""

import subprocess
import sys


def test_importing_the_shelf_imports_nothing_heavy_and_no_other_shelf():
    script = "import sys, kvproof_reports; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    packages = {name.partition(".")[0] for name in loaded}
    assert "kvproof_reports" in packages
    shelves = {"kvproof_impls", "kvproof_suites", "kvproof_kernels", "kvproof_reference", "kvproof_traces"}
    assert not packages & {*shelves, "torch", "numpy", "jinja2", "plotly", "mlflow", "pandas"}
