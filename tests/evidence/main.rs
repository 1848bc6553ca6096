//! What runs on real GPUs left, kept as raw reports: every figure that README.md, EVIDENCE.md and the folder's README
//! quote of them is derived here, and what was measured is compared with PyTorch's recordings and with the simulator
//! again. That a text says what the reports say is all that this shows: the reports themselves come from a card.

mod beside;
mod books;
mod bound;
#[path = "../convolution_calls/mod.rs"]
mod convolution_calls;
mod details;
mod driver_trials;
mod family_e2e;
mod kept;
mod libtest;
mod loops;
mod mutants;
mod peaks;
mod priced;
#[path = "../shown/mod.rs"]
mod shown;
mod summary;
mod two_cards;
mod undisturbed;
mod warm;
mod workspaces;

use headroom::catalogue::Catalogue;

#[test]
fn the_readmes_show_what_the_reports_of_real_gpus_say() {
    let catalogue = Catalogue::load(None).unwrap();
    let runs = kept::runs(&catalogue);
    let blocks = [
        ("README.md", summary::in_short(&catalogue, &runs)),
        ("EVIDENCE.md", summary::block(&catalogue, &runs)),
        ("tests/data/evidence/README.md", details::block(&catalogue, &runs)),
    ];
    for (file, block) in blocks {
        shown::block(file, "evidence", &block);
    }
}
