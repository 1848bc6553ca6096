"""Runs one case and reads the allocator's counters, events and blocks, and the driver's figure."""

import contextlib
import gc
import os
import time

import torch

COUNTERS = {
    "allocated": "allocated_bytes.all.current",
    "reserved": "reserved_bytes.all.current",
    "inactive_split": "inactive_split_bytes.all.current",
    "active": "active_bytes.all.current",
    "requested": "requested_bytes.all.current",
    "peak_allocated": "allocated_bytes.all.peak",
    "peak_reserved": "reserved_bytes.all.peak",
    "peak_active": "active_bytes.all.peak",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "segments": "segment.all.current",
}


class Driver:
    """NVML's view of this process."""

    def __init__(self):
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._device = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.version = pynvml.nvmlSystemGetDriverVersion()

    def process_bytes(self):
        """Device bytes of this process, or None where the driver does not say."""
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device):
            if process.pid == os.getpid():
                return process.usedGpuMemory
        return None


def host(driver):
    """The fields that say what was measured on."""
    import diffusers

    major, minor = torch.cuda.get_device_capability()
    return {
        "device": torch.cuda.get_device_name(),
        "backend": "cuda",
        "framework": f"torch {torch.__version__}",
        "library": f"diffusers {diffusers.__version__}",
        "driver": driver.version,
        "compute_capability": f"{major}.{minor}",
    }


def attention(options):
    """The attention kernels that the options allow."""
    if options.get("attention") == "math":
        return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    return contextlib.nullcontext()


def counters():
    stats = torch.cuda.memory_stats()
    return {name: stats.get(key, 0) for name, key in COUNTERS.items()}


def quiet():
    """An emptied cache and peaks that start at the present use."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def set_up_products(device):
    """Has cuBLAS and cuBLASLt take their workspaces now, as in a process that has run something before."""
    with torch.inference_mode():
        a = torch.ones(64, 64, device=device, dtype=torch.float16)
        torch.nn.functional.linear(a, a)
        torch.nn.functional.linear(a, a, a[0])
    del a
    quiet()


def window(run, options, driver):
    """One run: the deltas of its peaks against the counters when it began."""
    quiet()
    before, used = counters(), driver.process_bytes()
    begin = time.perf_counter()
    with torch.inference_mode(), attention(options):
        out = run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    after, used_after = counters(), driver.process_bytes()
    del out
    known = used is not None and used_after is not None
    return {
        "baseline_allocated": before["allocated"],
        "baseline_reserved": before["reserved"],
        "allocated_peak_delta": after["peak_allocated"] - before["allocated"],
        "reserved_peak_delta": after["peak_reserved"] - before["reserved"],
        "driver_delta": used_after - used if known else None,
        "retries": after["retries"] - before["retries"],
        "seconds": round(seconds, 4),
    }


def segments():
    """The allocator's segments with their blocks, by address."""
    found = torch.cuda.memory._snapshot()["segments"]
    return [
        {
            "address": s["address"],
            "total_size": s["total_size"],
            "segment_type": s["segment_type"],
            "is_expandable": s["is_expandable"],
            "blocks": [[b["address"], b["size"], b["requested_size"], b["state"]] for b in s["blocks"]],
        }
        for s in sorted(found, key=lambda s: s["address"])
    ]


def recorded(run, options, context=None):
    """The result of a run and the allocator's events during it."""
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(
        enabled="all", context=context, stacks="python", max_entries=1_000_000, clear_history=True
    )
    with torch.inference_mode(), attention(options):
        out = run()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return out, [e for e in events if e["action"] != "snapshot"]


def trace(run, options):
    """One run with every allocator event and the state it started from."""
    quiet()
    start, before = segments(), counters()
    out, events = recorded(run, options)
    after = counters()
    del out
    return {
        "start": start,
        "before": before,
        "after": after,
        "events": [[e["action"], e["addr"], e["size"]] for e in events],
    }


def _place(frames):
    """The innermost Python frame outside torch, with the package's path only."""
    for frame in frames:
        name = frame["filename"]
        for package in ("diffusers", "transformers"):
            if f"/{package}/" in name:
                return f"{package}/{name.split(f'/{package}/', 1)[1]}:{frame['line']} {frame['name']}"
    return ""


def places(module, run, options, events):
    """For each alloc event of a trace: which module and which line asked for it.

    Taken from one more run, in which hooks name the module. Empty if that run's allocations
    differ from the traced run's: then its names would not be the trace's.
    """
    stack, handles = [""], []

    def enter(name):
        def hook(*_):
            stack.append(name)
            torch.cuda.memory._set_memory_metadata(name)
        return hook

    def leave(*_):
        stack.pop()
        torch.cuda.memory._set_memory_metadata(stack[-1])

    for name, child in module.named_modules():
        handles += [child.register_forward_pre_hook(enter(name)), child.register_forward_hook(leave)]
    quiet()
    try:
        out, named = recorded(run, options, context="alloc")
        del out
    finally:
        for handle in handles:
            handle.remove()
        torch.cuda.memory._set_memory_metadata("")

    def order(pairs):
        return [(a, s) for a, s in pairs if a in ("alloc", "free_requested")]

    if order((e["action"], e["size"]) for e in named) != order((a, s) for a, _, s in events):
        return {}
    result = {}
    allocs = [e for e in named if e["action"] == "alloc"]
    for key, values in (
        ("module", [e.get("user_metadata", "") for e in allocs]),
        ("line", [_place(e.get("frames", [])) for e in allocs]),
    ):
        names = sorted(set(values))
        index = {name: i for i, name in enumerate(names)}
        result[f"{key}s"] = names
        result[f"alloc_{key}"] = [index[value] for value in values]
    return result
