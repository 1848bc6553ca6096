//! What runs on real GPUs left, kept as raw reports: every figure that README.md, EVIDENCE.md and the folder's README
//! quote of them is derived here, and what was measured is compared with PyTorch's recordings and with the simulator
//! again. That a text says what the reports say is all that this shows: the reports themselves come from a card.

mod beside;
mod details;
mod kept;
mod loops;
mod mutants;
mod peaks;
mod summary;

use std::path::PathBuf;
use std::{env, fs};

use headroom::catalogue::Catalogue;

const BEGIN: &str = "<!-- evidence: begin -->\n";
const END: &str = "<!-- evidence: end -->";

/// Run with `HEADROOM_BLESS=1` to write the blocks anew after a new run was kept, and read the difference.
#[test]
fn the_readmes_show_what_the_reports_of_real_gpus_say() {
    let catalogue = Catalogue::load(None).unwrap();
    let runs = kept::runs(&catalogue);
    let shown = [
        ("README.md", summary::in_short(&runs)),
        ("EVIDENCE.md", summary::block(&catalogue, &runs)),
        ("tests/data/evidence/README.md", details::block(&catalogue, &runs)),
    ];
    for (name, block) in shown {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
        let readme = fs::read_to_string(&path).unwrap();
        let (before, rest) = readme.split_once(BEGIN).expect("it marks where the evidence begins");
        let (found, after) = rest.split_once(END).expect("it marks where the evidence ends");
        if env::var_os("HEADROOM_BLESS").is_some() {
            fs::write(&path, format!("{before}{BEGIN}{block}{END}{after}")).unwrap();
            continue;
        }
        assert!(found == block, "{name}: the figures are not those of the reports: run again with HEADROOM_BLESS=1");
    }
}
