//! The plain reference: what its kernels compute, what it refuses, and the programs executed by it.

mod reference {
    mod architectures;
    mod checker;
    mod comparison;
    mod kernels;
    mod models;
    mod normalisations;
    mod products;
    mod properties;
    mod pytorch;
    mod sketch;
}
