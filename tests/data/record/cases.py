"""Which cases are recorded: held out from the recordings that the programs were written against, and fresh ones."""

import json


def case(family, operation, dtype, size=None, frames=1, batch=1, tokens=None, **options):
    width, height = size or (None, None)
    return dict(family=family, operation=operation, dtype=dtype, width=width, height=height,
                frames=frames, batch=batch, tokens=tokens, options=options)


def square(n):
    return (n, n)


def both(family, dtype, *sizes, **more):
    return [case(family, op, dtype, size, **more) for size in sizes for op in ("vae_decode", "vae_encode")]


D, E = "vae_decode", "vae_encode"
TILED = dict(tile=512, overlap=0.25)
HELD_OUT = ((1216, 832), (832, 1216), square(640), (1920, 1080), square(2048), square(256))


def _sdxl(dtype):
    # The first is a recorded case: it shows whether the procedure is the same.
    cases = [case("sdxl", D, dtype, square(1024))] + both("sdxl", dtype, *HELD_OUT)
    if dtype == "fp16":
        cases += [case("sdxl", D, dtype, square(768), attention="math"), case("sdxl", D, dtype, square(512), batch=4)]
    if dtype == "bf16":
        cases += [case("sdxl", E, dtype, square(2048), **TILED)]
    if dtype == "fp32":
        cases += [case("sdxl", D, dtype, square(1536), **TILED), case("sdxl", D, dtype, square(1024), attention="math"),
                  case("sdxl", D, dtype, square(1024), batch=2)]
    else:
        cases += both("sdxl", dtype, (1216, 832), channels_last=True)
    return cases


def _other_vaes():
    return (
        [case("flux", D, "bf16", square(1024))]
        + both("flux", "fp32", square(1024)) + both("flux", "fp16", (896, 1152))
        + both("sd3", "fp16", square(1024), (1344, 768), (1216, 832))
        + both("z-image", "bf16", square(1024), (1216, 832), square(640))
        + both("cogview4", "bf16", square(512), square(1024), (1344, 768), (1216, 832))
        + both("flux2", "bf16", square(512), square(1024), (1344, 768), square(1536))
        + both("flux2", "fp16", square(1024))
    )


def _video_vaes():
    cases = [case("qwen-image", D, "bf16", square(512))]
    cases += both("qwen-image", "bf16", square(768), (1344, 768), (1216, 832))
    cases += both("qwen-image", "fp16", square(512)) + both("qwen-image", "fp32", square(512))
    cases += [case("wan", D, "fp16", (832, 480), frames=17)]
    for dtype in ("fp16", "bf16"):
        for size in ((480, 320), (832, 480)):
            cases += [case("wan", D, dtype, size, frames=n) for n in (5, 9, 17, 33)
                      if (dtype, size, n) != ("fp16", (832, 480), 17)]
            cases += [case("wan", E, dtype, size, frames=n) for n in (1, 5, 9, 17)]
    return cases


def _small_models():
    cases = [case("taesd", D, "fp16", square(512)), case("taesd", E, "fp16", square(512))]
    cases += both("taesd", "fp16", square(768), square(1536)) + both("taesd", "fp32", square(1024))
    cases += both("taesd", "bf16", square(1024)) + both("taef1", "fp16", square(1024))
    cases += [case("sdxl-clip-g", "text_encode", d, batch=b, tokens=77) for d in ("fp16", "fp32", "bf16") for b in (1, 2, 4)]
    cases += [case("sdxl-clip-g", "text_encode", "fp16", batch=b, tokens=77, activation="gelu") for b in (1, 2)]
    cases += [case("sdxl-clip-l", "text_encode", "fp16", batch=b, tokens=77) for b in (1, 2)]
    cases += [case("t5-xxl", "text_encode", "bf16", tokens=n) for n in (256, 128, 512)]
    cases += [case("t5-xxl", "text_encode", "fp16", tokens=n) for n in (256, 512)]
    return cases


def _unet():
    sizes = (square(768), (1344, 768), square(1536))
    cases = [case("sdxl", "denoise", "fp16", square(512)), case("sdxl", "denoise", "fp16", square(1024))]
    cases += [case("sdxl", "denoise", "fp16", s, batch=b) for b in (1, 2) for s in sizes]
    return cases + [case("sdxl", "denoise", d, square(1024)) for d in ("bf16", "fp32")]


def _transformer():
    cases = [case("flux", "denoise", "bf16", square(n)) for n in (512, 1024)]
    cases += [case("flux", "denoise", "bf16", s) for s in (square(768), (1344, 768), square(1536))]
    return cases + [case("flux", "denoise", "bf16", square(1024), batch=2)]


# Name: (GiB of device memory to keep free for it, cases)
HELD_OUT_WINDOWS = {
    "sdxl-fp16": (24, _sdxl("fp16")),
    "sdxl-bf16": (24, _sdxl("bf16")),
    "sdxl-fp32": (42, _sdxl("fp32")),
    "other-vaes": (24, _other_vaes()),
    "video-vaes": (24, _video_vaes()),
    "transformer": (30, _transformer()),
    "unet": (14, _unet()),
    "small-models": (14, _small_models()),
}

TRACES = {
    "sdxl-half": (10, [
        case("sdxl", D, "fp16", square(1024)), case("sdxl", D, "fp16", square(512)),
        case("sdxl", D, "fp16", (1344, 768)), case("sdxl", D, "fp16", square(1024), **TILED),
        case("sdxl", E, "fp16", square(1024), **TILED),
        case("sdxl", D, "fp16", square(512), attention="math"),
        case("sdxl", D, "fp16", square(1024), channels_last=True),
    ]),
    "sdxl-single": (12, [case("sdxl", D, "fp32", square(1024)), case("sdxl", E, "fp32", square(512))]),
    "other-vaes": (8, [
        case("flux2", D, "bf16", square(512)), case("flux2", E, "bf16", square(512)),
        case("cogview4", D, "bf16", square(512)), case("cogview4", E, "bf16", square(512)),
        case("taesd", D, "fp16", square(512)), case("taesd", E, "fp16", square(512)),
    ]),
    "video-vaes": (8, [
        case("qwen-image", E, "bf16", square(512)), case("wan", E, "fp16", (480, 320), frames=9),
        case("wan", D, "fp16", (480, 320), frames=9),
    ]),
    "unet": (10, [case("sdxl", "denoise", "fp16", square(1024)), case("sdxl", "denoise", "fp16", square(1024), batch=2),
                  case("sdxl-clip-g", "text_encode", "fp16", tokens=77),
                  case("sdxl-clip-g", "text_encode", "fp16", tokens=77, activation="gelu"),
                  case("sdxl-clip-l", "text_encode", "fp16", tokens=77)]),
    "transformer": (30, [case("flux", "denoise", "bf16", square(512)),
                         case("t5-xxl", "text_encode", "bf16", tokens=256)]),
}

# Recorded cases in a process of their own, in which nothing ran before.
ALONE = {
    "native": [case("sdxl", D, "fp16", square(1024), tile=256, overlap=0.25), case("sdxl", D, "fp16", square(1024)),
               case("qwen-image", D, "bf16", square(512))],
    "cuda_malloc_async": [case("sdxl", D, "fp16", square(512))],
}


def _fresh_sdxl(dtype):
    sizes = ((960, 544), (1408, 704), (1792, 1024), (704, 1280), (1088, 1920), square(1600))
    cases = both("sdxl", dtype, *sizes)
    if dtype == "fp16":
        cases += [case("sdxl", D, dtype, (1792, 1024), tile=n, overlap=0.25) for n in (512, 768)]
        cases += [case("sdxl", D, dtype, (896, 640), attention="math")]
        cases += both("sdxl", dtype, (1408, 704), channels_last=True)
    return cases


def _fresh_other_vaes():
    cases = both("flux", "bf16", (1088, 896), (1728, 960))
    for family, dtype in (("sd3", "fp16"), ("z-image", "bf16"), ("flux2", "bf16"), ("cogview4", "bf16")):
        cases += [case(family, D, dtype, s) for s in ((896, 1088), (1408, 704))]
    return cases


def _fresh_video_vaes():
    cases = both("qwen-image", "bf16", (896, 1088), (640, 1024))
    cases += [case("wan", D, "fp16", (640, 352), frames=n) for n in (13, 21)]
    cases += [case("wan", D, "fp16", (832, 480), frames=25)]
    return cases + [case("wan", E, "fp16", s, frames=13) for s in ((640, 352), (832, 480))]


def _fresh_small_models():
    cases = both("taesd", "fp16", (896, 1088))
    cases += [case("sdxl-clip-g", "text_encode", d, batch=b, tokens=77) for d in ("fp16", "fp32", "bf16") for b in (3, 6)]
    return cases + [case("t5-xxl", "text_encode", "bf16", batch=b, tokens=n) for b in (1, 2) for n in (192, 384)]


# Cases of sizes and lengths that are in no other recording. The first of each job was recorded before and goes to
# verify.jsonl.
FRESH_WINDOWS = {
    "transformer": (30, [case("flux", "denoise", "bf16", square(512))]
                    + [case("flux", "denoise", "bf16", s) for s in ((1088, 896), square(704), (1408, 704))]),
    "video-vaes": (24, [case("qwen-image", D, "bf16", square(512))] + _fresh_video_vaes()),
    "sdxl-fp32": (42, [case("sdxl", D, "fp32", square(1024))] + _fresh_sdxl("fp32")),
    "sdxl-fp16": (24, [case("sdxl", D, "fp16", square(1024))] + _fresh_sdxl("fp16")),
    "unet": (14, [case("sdxl", "denoise", "fp16", square(1024))]
             + [case("sdxl", "denoise", "fp16", s, batch=b) for b in (1, 2, 3) for s in ((1088, 896), (704, 1280))]),
    "sdxl-bf16": (24, [case("sdxl", D, "bf16", square(1024))] + _fresh_sdxl("bf16")),
    "other-vaes": (24, [case("flux", D, "bf16", square(1024))] + _fresh_other_vaes()),
    "small-models": (14, [case("taesd", D, "fp16", square(512))] + _fresh_small_models()),
}

WINDOWS = {"held-out": HELD_OUT_WINDOWS, "fresh": FRESH_WINDOWS}


def _extent(line):
    """What must be new of a case: its size, either way up, and frames; of text, model, length and batch."""
    if line["width"] is None:
        return (line["family"], line["tokens"], line["batch"])
    return (*sorted((line["width"], line["height"])), line["frames"])


def seen_before(paths):
    """The fresh cases, beside the first of each job, whose extent occurs in one of the recordings."""
    seen = {_extent(json.loads(text)) for path in paths for text in path.read_text().splitlines()}
    return [c for _, cases in FRESH_WINDOWS.values() for c in cases[1:] if _extent(c) in seen]
