//! What the recorded families are, and where the recordings lie.

use std::path::PathBuf;

use headroom_base::Operation;
use headroom_family::Architecture;
use headroom_family::architecture::{
    AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder, FluxTransformer, T5Encoder,
    Unet2dCondition,
};
use headroom_runners::programs::evidence::Recorded;

/// A recording's path below the test data.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

/// The architecture that was recorded.
pub(crate) fn architecture(recorded: &Recorded) -> Option<Architecture> {
    let sixteen = AutoencoderKl {
        latent_channels: 16,
        use_quant_conv: false,
        use_post_quant_conv: false,
        ..AutoencoderKl::default()
    };
    // The recorded CLIP encoders have transformers' default activation except where an option names another.
    let quick_gelu = !recorded.options.contains("gelu activation");
    let clip = ClipTextEncoder { projection_dim: None, quick_gelu, ..ClipTextEncoder::default() };
    Some(match (recorded.family.as_str(), recorded.case.operation) {
        ("sdxl", Operation::Denoise) => Architecture::Unet2dCondition(Unet2dCondition::default()),
        ("flux", Operation::Denoise) => Architecture::FluxTransformer(FluxTransformer::default()),
        ("sd15" | "sdxl", _) => Architecture::AutoencoderKl(AutoencoderKl::default()),
        ("flux" | "sd3" | "z-image", _) => Architecture::AutoencoderKl(sixteen),
        ("cogview4", _) => Architecture::AutoencoderKl(AutoencoderKl {
            block_out_channels: vec![128, 512, 1024, 1024],
            layers_per_block: 3,
            mid_block_add_attention: false,
            ..sixteen
        }),
        ("flux2", _) => Architecture::AutoencoderKlFlux2(AutoencoderKlFlux2::default()),
        ("qwen-image", _) => Architecture::AutoencoderKlQwenImage(CausalAutoencoder::default()),
        ("wan", _) => Architecture::AutoencoderKlWan(CausalAutoencoder::default()),
        ("taesd", _) => Architecture::AutoencoderTiny(AutoencoderTiny::default()),
        ("taef1", _) => {
            Architecture::AutoencoderTiny(AutoencoderTiny { latent_channels: 16, ..AutoencoderTiny::default() })
        }
        ("t5-xxl", _) => Architecture::T5Encoder(T5Encoder::default()),
        ("sdxl-clip-g", _) => Architecture::ClipTextEncoder(clip),
        ("sdxl-clip-l", _) => Architecture::ClipTextEncoder(ClipTextEncoder {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            ..clip
        }),
        _ => return None,
    })
}
