"""How long PyTorch's own caching allocator takes for an allocate and a free of a cached block, called from C++.

    python allocator_pairs.py > allocator-pairs.json

Needs a GPU, PyTorch, ninja and a C++ compiler. `headroom devices --measure` prints the same loop over headroom's
allocator: run both on one host and compare them as a ratio. Date, card, hash of its UUID and driver's version are
printed as it prints them, so that both files can be told to be of one card.
"""

import ctypes
import datetime
import hashlib
import json
import statistics

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <c10/core/Allocator.h>
#include <chrono>
#include <vector>

// Nanoseconds for each pair, once for each round.
std::vector<double> pairs(int64_t bytes, int64_t count, int64_t rounds) {
    auto* allocator = c10::GetAllocator(c10::DeviceType::CUDA);
    allocator->raw_deallocate(allocator->raw_allocate(bytes));
    std::vector<double> nanoseconds;
    for (int64_t round = 0; round < rounds; round++) {
        const auto start = std::chrono::steady_clock::now();
        for (int64_t i = 0; i < count; i++) allocator->raw_deallocate(allocator->raw_allocate(bytes));
        const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
        nanoseconds.push_back(taken.count() / count);
    }
    return nanoseconds;
}
"""

SIZES = (512, 4 << 10, 1 << 20, 32 << 20)
COUNT, ROUNDS = 1_000_000, 5


def driver_version():
    """As the management library writes it; where it cannot tell, the newest CUDA version that the driver knows."""
    text = ctypes.create_string_buffer(96)
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() == 0 and library.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            return text.value.decode()
    except (OSError, AttributeError):
        pass
    known = torch._C._cuda_getDriverVersion()
    return f"CUDA {known // 1000}.{known % 1000 // 10}"


def origin():
    """When and where this runs; the card by the first 16 digits of its UUID's SHA-256, which do not name it."""
    card = torch.cuda.get_device_properties(0)
    uuid = f"GPU-{str(card.uuid).removeprefix('GPU-')}"
    return {
        "created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "name": card.name,
        "uuid_hash": hashlib.sha256(uuid.encode()).hexdigest()[:16],
        "driver_version": driver_version(),
    }


def main():
    torch.cuda.init()
    torch.empty(1, device="cuda")
    loop = load_inline("allocator_pairs", SOURCE, functions=["pairs"], extra_cflags=["-O2"])
    rows = [{"bytes": size, "pair_ns": round(statistics.median(loop.pairs(size, COUNT, ROUNDS)), 1)} for size in SIZES]
    measured = {"allocator": "PyTorch " + torch.__version__, "count": COUNT, "rounds": ROUNDS, "rows": rows}
    print(json.dumps(origin() | measured))


if __name__ == "__main__":
    main()
