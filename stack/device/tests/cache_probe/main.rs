//! The model cache and the probe on simulated cards.

mod cache_answers;
mod cache_credit;
mod cache_edges;
mod cache_failures;
mod cache_guards;
mod cache_locking;
mod cache_properties;
mod cache_reach;
mod cache_room;
mod cache_waits;
mod cache_words;
mod faults;
mod probe_stretches;
mod probe_windows;
mod public_reports_drivers;
mod public_reports_estimates;
mod public_reports_residency;
mod readers;
mod rig;
mod threads;
mod weights_files;
