"""Builds the recorded models with random weights, and the inputs of one operation."""

import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

KL = dict(
    block_out_channels=(128, 256, 512, 512),
    layers_per_block=2,
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
)
KL_16 = dict(KL, latent_channels=16, use_quant_conv=False, use_post_quant_conv=False)

LATENT_CHANNELS = {
    "sdxl": 4, "flux": 16, "sd3": 16, "z-image": 16, "cogview4": 16, "flux2": 32,
    "qwen-image": 16, "wan": 16, "taesd": 4, "taef1": 16,
}
VIDEO_SHAPED = {"qwen-image", "wan"}


def _vae(family):
    import diffusers

    if family == "sdxl":
        return diffusers.AutoencoderKL(latent_channels=4, **KL)
    if family in ("flux", "sd3", "z-image"):
        return diffusers.AutoencoderKL(**KL_16)
    if family == "cogview4":
        # The shape that diffusers' own conversion of CogView4 gives its VAE.
        return diffusers.AutoencoderKL(
            **dict(KL_16, block_out_channels=(128, 512, 1024, 1024), layers_per_block=3),
            mid_block_add_attention=False,
        )
    if family == "flux2":
        return diffusers.AutoencoderKLFlux2()
    if family == "qwen-image":
        return diffusers.AutoencoderKLQwenImage()
    if family == "wan":
        return diffusers.AutoencoderKLWan()
    if family == "taesd":
        return diffusers.AutoencoderTiny()
    if family == "taef1":
        return diffusers.AutoencoderTiny(latent_channels=16)
    raise ValueError(f"no VAE for {family}")


def _sdxl_unet():
    import diffusers

    return diffusers.UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=2,
        attention_head_dim=(5, 10, 20),
        transformer_layers_per_block=(1, 2, 10),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def _text_encoder(family, activation):
    import transformers

    if family == "t5-xxl":
        return transformers.T5EncoderModel(transformers.T5Config(
            d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, vocab_size=32128,
            feed_forward_proj="gated-gelu", is_encoder_decoder=False, use_cache=False,
        ))
    if family == "sdxl-clip-g":
        return transformers.CLIPTextModel(transformers.CLIPTextConfig(
            hidden_size=1280, intermediate_size=5120, num_hidden_layers=32,
            num_attention_heads=20, hidden_act=activation or "quick_gelu", projection_dim=1280,
        ))
    if family == "sdxl-clip-l":
        return transformers.CLIPTextModel(transformers.CLIPTextConfig(
            hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
            num_attention_heads=12, hidden_act=activation or "quick_gelu", projection_dim=768,
        ))
    raise ValueError(f"no text encoder for {family}")


def construct(family, operation, options):
    """The module of a family's operation, on the current default device and dtype."""
    if operation.startswith("vae_"):
        return _vae(family)
    if operation == "text_encode":
        return _text_encoder(family, options.get("activation"))
    if family == "sdxl":
        return _sdxl_unet()
    if family == "flux":
        import diffusers

        return diffusers.FluxTransformer2DModel(guidance_embeds=True)
    raise ValueError(f"no model for {family} {operation}")


def _allocate(module, device):
    """Gives every tensor memory on the device in the order of `module.to(device)`, shared ones once."""
    known = {}

    def place(tensor):
        if id(tensor) not in known:
            known[id(tensor)] = (tensor, torch.empty_like(tensor, device=device))
        return known[id(tensor)][1]

    module._apply(place)
    if hasattr(module, "tie_weights"):
        module.tie_weights()


def build(family, operation, dtype, device, place, options):
    """Random weights on the device.

    `place` is how they get there: "construct" creates each tensor on the device as the
    constructors run; "apply" allocates them in the order in which `module.to(device)` moves them.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with torch.device(device if place == "construct" else "meta"):
            module = construct(family, operation, options)
    finally:
        torch.set_default_dtype(default)
    if place == "apply":
        _allocate(module, device)
        with torch.no_grad():
            for tensor in module.parameters():
                tensor.normal_(0.0, 0.02)
            for name, tensor in module.named_buffers():
                if name.endswith("position_ids"):
                    tensor.copy_(torch.arange(tensor.shape[-1]).expand_as(tensor))
                else:
                    tensor.fill_(1)
    module.eval().requires_grad_(False)
    if options.get("channels_last"):
        module.to(memory_format=torch.channels_last)
    return module


def set_tiling(vae, options):
    """Sets or clears AutoencoderKL's tiling as the options say."""
    tile = options.get("tile")
    vae.use_tiling = tile is not None
    if tile is not None:
        vae.tile_sample_min_size = tile
        vae.tile_latent_min_size = tile // 8
        vae.tile_overlap_factor = options["overlap"]


def operation(module, case, device):
    """A function without arguments that runs the case, its inputs already on the device."""
    family, kind, batch = case["family"], case["operation"], case["batch"]
    dtype = DTYPES[case["dtype"]]
    options = case.get("options") or {}

    def tensor(*shape):
        return torch.randn(shape, device=device, dtype=dtype)

    if kind.startswith("vae_"):
        scale = 8 if kind == "vae_decode" else 1
        channels = LATENT_CHANNELS[family] if kind == "vae_decode" else 3
        frames = case["frames"]
        if kind == "vae_decode":
            frames = (frames - 1) // 4 + 1
        depth = (frames,) if family in VIDEO_SHAPED else ()
        x = tensor(batch, channels, *depth, case["height"] // scale, case["width"] // scale)
        if options.get("channels_last"):
            x = x.to(memory_format=torch.channels_last)
        if "tile" in options or hasattr(module, "tile_latent_min_size"):
            set_tiling(module, options)
        return (lambda: module.decode(x)) if kind == "vae_decode" else (lambda: module.encode(x))
    if kind == "text_encode":
        ids = torch.randint(0, 30000, (batch, case["tokens"]), device=device)
        return lambda: module(ids)
    if family == "sdxl":
        x = tensor(batch, 4, case["height"] // 8, case["width"] // 8)
        text = tensor(batch, 77, 2048)
        added = {"text_embeds": tensor(batch, 1280), "time_ids": tensor(batch, 6)}
        time = torch.tensor([500], device=device)
        return lambda: module(x, time, encoder_hidden_states=text, added_cond_kwargs=added)
    tokens = (case["height"] // 16) * (case["width"] // 16)
    inputs = dict(
        hidden_states=tensor(batch, tokens, 64),
        encoder_hidden_states=tensor(batch, 512, 4096),
        pooled_projections=tensor(batch, 768),
        timestep=torch.full((batch,), 0.5, device=device, dtype=dtype),
        guidance=torch.full((batch,), 3.5, device=device, dtype=dtype),
        img_ids=torch.zeros(tokens, 3, device=device, dtype=dtype),
        txt_ids=torch.zeros(512, 3, device=device, dtype=dtype),
    )
    return lambda: module(**inputs)
