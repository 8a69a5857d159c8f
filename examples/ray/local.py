"""Starts Ray for an example, on this machine unless RAY_ADDRESS names a cluster. Import it before Ray.

Ray on Linux listens on all addresses. The second variable, which Ray reads as it is imported, keeps it on 127.0.0.1.
"""

import os
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if "RAY_ADDRESS" not in os.environ:
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import ray


def start(cpus: int) -> None:
    """Connects to the cluster, or starts a small Ray of `cpus` units here."""
    if "RAY_ADDRESS" in os.environ:
        files = {"working_dir": str(Path(__file__).resolve().parent)}
        ray.init(runtime_env=files, logging_level="warning")
    else:
        ray.init(num_cpus=cpus, object_store_memory=200 << 20, include_dashboard=False, logging_level="warning")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    # Else it warns every half a minute that a worker of some 120 MB names no memory.
    context.issue_detectors_config.high_memory_detector_config.detection_time_interval_s = -1
