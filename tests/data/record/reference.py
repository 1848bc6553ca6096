"""Runs small models of every architecture in PyTorch, for the programs' results to be held against.

    python reference.py ../reference/models.jsonl ../reference/outputs.jsonl

The first file says what to build and what stands in every parameter and input; the second gets the outputs. All of it
runs on the CPU, in single precision.
"""

import json
import sys

import numpy
import torch

# What a configuration file calls a number that our architectures call something else.
RENAMED = {"image_channels": ("in_channels", "out_channels")}


def seed_of(name):
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) & 0xFFFFFFFF
    return seed


def uniform(seed, count):
    """Numbers in [0, 1): 24 bits of a mixed counter."""
    x = numpy.arange(count, dtype=numpy.uint32) ^ numpy.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    x ^= x >> numpy.uint32(16)
    x *= numpy.uint32(0x7FEB352D)
    x ^= x >> numpy.uint32(15)
    x *= numpy.uint32(0x846CA68B)
    x ^= x >> numpy.uint32(16)
    return (x >> numpy.uint32(8)).astype(numpy.float32) * numpy.float32(1.0 / 16777216.0)


def filled(name, elements, filling):
    """What stands in the memory of a tensor, from its beginning."""
    if filling == "counting":
        return numpy.arange(elements)
    if "below" in filling:
        return numpy.floor(uniform(seed_of(name), elements).astype(numpy.float64) * filling["below"]).astype(numpy.int64)
    centre, amplitude = (numpy.float32(number) for number in filling["around"])
    return amplitude * (numpy.float32(2) * uniform(seed_of(name), elements) - numpy.float32(1)) + centre


def _numbers(architecture, *without):
    numbers = {}
    for key, value in architecture.items():
        if key != "kind" and key not in without:
            numbers.update({name: value for name in RENAMED.get(key, (key,))})
    return numbers


def _image_autoencoder(cls, architecture):
    numbers = _numbers(architecture)
    levels = len(architecture["block_out_channels"])
    if "patch_size" in numbers:
        numbers["patch_size"] = (numbers["patch_size"],) * 2
    return cls(down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels, **numbers)


def _unet(cls, architecture):
    layers = architecture["transformer_layers_per_block"]
    down = tuple("CrossAttnDownBlock2D" if count else "DownBlock2D" for count in layers)
    up = tuple("CrossAttnUpBlock2D" if count else "UpBlock2D" for count in reversed(layers))
    width = architecture["projection_class_embeddings_input_dim"]
    # The reference takes the middle's layers from the last level, which need not have attention itself.
    middle = architecture["mid_block_transformer_layers"]
    assert layers[-1] in (0, middle)
    numbers = _numbers(architecture, "text_tokens", "mid_block_transformer_layers", "attention_heads",
                       "transformer_layers_per_block", "projection_class_embeddings_input_dim", "addition_time_embed_dim")
    added = dict(addition_embed_type="text_time", projection_class_embeddings_input_dim=width,
                 addition_time_embed_dim=architecture["addition_time_embed_dim"])
    return cls(down_block_types=down, up_block_types=up, attention_head_dim=tuple(architecture["attention_heads"]),
               transformer_layers_per_block=(*(count or 1 for count in layers[:-1]), middle), **numbers, **(added if width else {}))


def _flux(cls, architecture):
    other = (architecture["attention_head_dim"] - 16) // 2
    return cls(axes_dims_rope=(16, other, other), **_numbers(architecture, "text_tokens"))


def _clip(transformers, architecture):
    width = architecture["projection_dim"]
    config = transformers.CLIPTextConfig(
        hidden_act="quick_gelu" if architecture["quick_gelu"] else "gelu", projection_dim=width or 1,
        bos_token_id=0, eos_token_id=architecture["vocab_size"] - 1,
        **_numbers(architecture, "quick_gelu", "projection_dim"))
    return (transformers.CLIPTextModelWithProjection if width else transformers.CLIPTextModel)(config)


def _t5(transformers, architecture):
    return transformers.T5EncoderModel(transformers.T5Config(
        feed_forward_proj="gated-gelu", is_encoder_decoder=False, use_cache=False, **_numbers(architecture)))


def construct(architecture):
    import diffusers
    import transformers

    kind = architecture["kind"]
    causal = {"autoencoder_kl_qwen_image": "AutoencoderKLQwenImage", "autoencoder_kl_wan": "AutoencoderKLWan"}
    if kind == "autoencoder_kl":
        return _image_autoencoder(diffusers.AutoencoderKL, architecture)
    if kind == "autoencoder_kl_flux2":
        return _image_autoencoder(diffusers.AutoencoderKLFlux2, architecture)
    if kind in causal:
        without = () if kind == "autoencoder_kl_wan" else ("image_channels", "decoder_base_dim")
        return getattr(diffusers, causal[kind])(**_numbers(architecture, *without))
    if kind == "autoencoder_tiny":
        return diffusers.AutoencoderTiny(**_numbers(architecture))
    if kind == "unet2d_condition":
        return _unet(diffusers.UNet2DConditionModel, architecture)
    if kind == "flux_transformer":
        return _flux(diffusers.FluxTransformer2DModel, architecture)
    return _clip(transformers, architecture) if kind == "clip_text_encoder" else _t5(transformers, architecture)


def build(line):
    """The model with everything filled; parameters and buffers must be those of the line, in its order."""
    module = construct(line["architecture"]).eval().requires_grad_(False)
    tensors, seen = [], set()
    for part in (module.named_parameters(), module.named_buffers()):
        tensors += [(name, tensor) for name, tensor in part if not (id(tensor) in seen or seen.add(id(tensor)))]
    tensors = dict(tensors)
    named = [name for name, _, _ in line["parameters"]]
    if set(named) != set(tensors):
        raise SystemExit(f"{line['model']}: only there {set(named) - set(tensors)}, only here {set(tensors) - set(named)}")
    for name, elements, filling in line["parameters"]:
        tensor = tensors[name]
        if tensor.numel() != elements:
            raise SystemExit(f"{line['model']}: {name} has {tensor.numel()} elements, not {elements}")
        tensor.copy_(torch.from_numpy(filled(name, elements, filling)).reshape(tensor.shape))
    return module


def inputs_of(line, case):
    return {name: torch.from_numpy(filled(name, elements, filling)) for name, elements, filling in case["inputs"]}


def _coded(module, line, case, given):
    what, architecture = case["case"], line["architecture"]
    decodes = what["operation"] == "vae_decode"
    levels = architecture.get("block_out_channels") or architecture.get("dim_mult") or architecture["encoder_block_out_channels"]
    scale = 2 ** (len(levels) - 1) if decodes else 1
    channels = architecture["image_channels"]
    if decodes:
        channels = architecture.get("latent_channels") or architecture["z_dim"]
    depth = ()
    if "dim_mult" in architecture:
        groups = 2 ** sum(architecture["temperal_downsample"])
        depth = ((what["frames"] - 1) // groups + 1 if decodes else what["frames"],)
    sizes = (what["batch"], channels, *depth, what["height"] // scale, what["width"] // scale)
    x = given["latents" if decodes else "pixels"].reshape(sizes)
    if "block_out_channels" in architecture:
        tiling = what.get("tiling")
        module.use_tiling = tiling is not None
        if tiling:
            module.tile_sample_min_size = tiling["tile_pixels"]
            module.tile_latent_min_size = tiling["tile_pixels"] // 2 ** (len(levels) - 1)
            module.tile_overlap_factor = tiling["overlap_percent"] / 100
    if decodes:
        return [module.decode(x).sample]
    encoded = module.encode(x)
    if hasattr(encoded, "latents"):
        return [encoded.latents]
    latents = encoded.latent_dist
    return [latents.parameters, latents.logvar, latents.std, latents.var]


def _denoised(module, line, case, given):
    what, architecture = case["case"], line["architecture"]
    batch = what["batch"]
    if architecture["kind"] == "flux_transformer":
        numbers = {name: given.get(name) for name in ("timestep", "guidance")}
        ids = {name: given[name].reshape(-1, 3) for name in ("img_ids", "txt_ids")}
        hidden = given["hidden_states"].reshape(batch, -1, architecture["in_channels"])
        text = given["encoder_hidden_states"].reshape(batch, -1, architecture["joint_attention_dim"])
        pooled = given["pooled_projections"].reshape(batch, -1)
        return [module(hidden_states=hidden, encoder_hidden_states=text, pooled_projections=pooled, **numbers, **ids).sample]
    x = given["sample"].reshape(batch, architecture["in_channels"], what["height"] // 8, what["width"] // 8)
    text = given["encoder_hidden_states"].reshape(batch, -1, architecture["cross_attention_dim"])
    added = {name: given[name].reshape(batch, -1) for name in ("text_embeds", "time_ids") if name in given}
    return [module(x, given["timestep"], encoder_hidden_states=text, added_cond_kwargs=added or None).sample]


def run(module, line, case):
    """The outputs, in the order in which the programs name them."""
    given = inputs_of(line, case)
    operation = case["case"]["operation"]
    if operation.startswith("vae_"):
        return _coded(module, line, case, given)
    if operation == "denoise":
        return _denoised(module, line, case, given)
    ids = given["input_ids"].reshape(case["case"]["batch"], -1)
    output = module(ids)
    if "text_embeds" not in output:
        return list(output.values())
    # The class with a projection hands on what it projects only inside.
    return [output.last_hidden_state, module.text_model(ids).pooler_output, output.text_embeds]


def sampled(tensor):
    """A value every so many, so that a file of all outputs stays small; an odd step meets every column."""
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // 300) | 1
    return dict(sizes=list(tensor.shape), step=step, values=[float(f"{v:.9g}") for v in flat[::step].tolist()])


def main():
    source, target = sys.argv[1:]
    torch.set_num_threads(2)
    with open(source) as lines, open(target, "w") as file, torch.inference_mode():
        for line in map(json.loads, lines):
            module = build(line)
            for case in line["cases"]:
                outputs = [sampled(output) for output in run(module, line, case)]
                result = dict(model=line["model"], case=case["case"], outputs=outputs)
                file.write(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
