"""Records what single convolution calls allocate beside their output: the library's workspace."""

import torch
import torch.nn.functional as F

import measure
from models import DTYPES

# The largest input plus output, in bytes: with the copies a library makes, four times that is used.
LARGEST_BYTES = 4 << 30

PAIRS = [
    (3, 128), (4, 512), (16, 512), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512),
    (512, 256), (256, 128), (128, 3), (64, 64), (64, 3), (3, 64),
]
UNET_PAIRS = [(320, 320), (640, 640), (1280, 1280), (4, 320), (320, 4), (320, 640), (640, 1280),
              (960, 320), (1920, 640), (2560, 1280)]
WIDE_PAIRS = [(16, 1024), (32, 512), (1024, 1024), (1024, 512), (512, 1024), (512, 128), (512, 8), (512, 32),
              (512, 64), (1024, 32), (4, 64), (64, 4)]
PLANES = [(32, 32), (64, 64), (96, 96), (128, 128), (104, 152), (256, 256), (512, 512), (1024, 1024)]
SMALL_PLANES = [(32, 32), (64, 64), (128, 128), (104, 152)]
CAUSAL_PAIRS = [(16, 384), (384, 384), (192, 384), (192, 192), (384, 192), (96, 96), (192, 96), (96, 192),
                (96, 3), (3, 96), (384, 32)]
CAUSAL_PLANES = [(40, 60), (60, 104), (64, 64), (80, 120), (120, 208), (128, 128), (160, 240), (240, 416),
                 (256, 256), (320, 480), (480, 832), (512, 512), (1024, 1024)]


def flat_calls(dtype):
    """The conv2d calls: kernel, stride and padding as image models use them."""
    for layout in ("nchw", "channels_last"):
        for batch in (1, 2):
            for pairs, planes in ((PAIRS, PLANES), (UNET_PAIRS, SMALL_PLANES), (WIDE_PAIRS, SMALL_PLANES)):
                for plane in planes:
                    for pair in pairs:
                        kernels = [(3, 1, 1), (1, 1, 0)]
                        if pair[0] == pair[1]:
                            kernels += [(3, 2, 1), (3, 2, 0)]
                        for kernel, stride, pad in kernels:
                            # A VAE pads one row and column itself before a stride of 2 without padding.
                            size = [n + 1 for n in plane] if (stride, pad) == (2, 0) else list(plane)
                            yield dict(op="conv2d", dtype=dtype, layout=layout, batch=batch, channels=list(pair),
                                       size=size, kernel=[kernel] * 2, stride=[stride] * 2, pad=[pad] * 2)


def deep_calls(dtype):
    """The conv3d calls of causal video VAEs: padding done before, two cached frames in front."""
    for plane in CAUSAL_PLANES:
        for frames in (1, 2, 4, 3):
            for pair in CAUSAL_PAIRS:
                size = [frames + 2] + [n + 2 for n in plane]
                yield dict(op="conv3d", dtype=dtype, layout="nchw", batch=1, channels=list(pair), size=size,
                           kernel=[3, 3, 3], stride=[1, 1, 1], pad=[0, 0, 0])
            for pair in ((384, 768), (192, 384), (192, 192), (384, 384)):
                yield dict(op="conv3d", dtype=dtype, layout="nchw", batch=1, channels=list(pair),
                           size=[frames + 2, *plane], kernel=[3, 1, 1], stride=[1, 1, 1], pad=[0, 0, 0])
            for pair in ((192, 192), (384, 384)):
                if frames in (2, 4):
                    yield dict(op="conv3d", dtype=dtype, layout="nchw", batch=1, channels=list(pair),
                               size=[frames + 1, *plane], kernel=[3, 1, 1], stride=[2, 1, 1], pad=[0, 0, 0])
            for pair in ((192, 384), (96, 192), (32, 32), (16, 16)):
                yield dict(op="conv3d", dtype=dtype, layout="nchw", batch=1, channels=list(pair),
                           size=[frames, *plane], kernel=[1, 1, 1], stride=[1, 1, 1], pad=[0, 0, 0])
            # The resampling convolutions of these VAEs run frame by frame as a batch.
            for pair in ((384, 192), (192, 96), (384, 384), (192, 192), (96, 96)):
                yield dict(op="conv2d", dtype=dtype, layout="nchw", batch=frames, channels=list(pair),
                           size=list(plane), kernel=[3, 3], stride=[1, 1], pad=[1, 1])


def too_large(call):
    inner = call["batch"] * DTYPES[call["dtype"]].itemsize
    for n, s in zip(call["size"], call["stride"]):
        inner *= n
    outer = inner
    for s in call["stride"]:
        outer //= s
    return inner * call["channels"][0] + outer * call["channels"][1] > LARGEST_BYTES


def allocations(run):
    """The requested sizes that a call allocated and gave back, and those it kept."""
    out, events = measure.recorded(run, {})
    del out
    live, order = {}, []
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = len(order)
            order.append([event["size"], True])
        elif event["action"] == "free_requested" and event["addr"] in live:
            order[live.pop(event["addr"])][1] = False
    return [s for s, kept in order if not kept], [s for s, kept in order if kept]


def record(call, device):
    """One call's line: `transient` is the peak less what was there and the output, in bytes."""
    dtype = DTYPES[call["dtype"]]
    inner, outer = call["channels"]
    shape = (call["batch"], inner, *call["size"])
    x = torch.empty(shape, device=device, dtype=dtype).normal_()
    weight = torch.empty((outer, inner, *call["kernel"]), device=device, dtype=dtype).normal_(0, 0.02)
    bias = torch.zeros(outer, device=device, dtype=dtype)
    if call["layout"] == "channels_last":
        x = x.to(memory_format=torch.channels_last)
        weight = weight.to(memory_format=torch.channels_last)
    convolve = F.conv2d if call["op"] == "conv2d" else F.conv3d

    def run():
        return convolve(x, weight, bias, stride=call["stride"], padding=call["pad"])

    if torch.cuda.memory_reserved() > 16 << 30:
        torch.cuda.empty_cache()
    first, _ = allocations(run)
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode():
        out = run()
    # Rounded blocks, so that a workspace shows as the allocator counts it.
    transient = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del out
    freed, kept = allocations(run)
    line = dict(call, transient=transient, freed=freed)
    if len(kept) != 1:
        line["kept"] = kept
    if first != freed:
        line["first_freed"] = first
    return line
