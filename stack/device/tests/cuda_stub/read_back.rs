//! The checks of a GPU that read back what arrived, over the stand-in: they hold where nothing is wrong, and fail where
//! something is.

#[path = "../cuda_gpu/uploads.rs"]
mod on_gpu;

use crate::stub::{Ever, context, ever, in_child, leaks};

#[test]
fn what_is_read_back_from_a_gpu_is_read_back_from_the_stand_in_too() {
    let name = "what_is_read_back_from_a_gpu_is_read_back_from_the_stand_in_too";
    in_child(module_path!(), name, &[], || {
        let context = context();
        on_gpu::one_large_part(&context).unwrap();
        on_gpu::many_odd_pieces(&context).unwrap();
        on_gpu::every_second_piece(&context).unwrap();
        on_gpu::buffers_used_again(&context).unwrap();
        on_gpu::models_from_a_file(&context).unwrap();
        drop(context);
        assert_eq!((leaks(), ever(Ever::FreedUnderWork)), (Vec::new(), 0));
    });
}

#[test]
fn copies_that_were_taken_and_never_made_are_seen_by_what_is_read_back_from_a_gpu() {
    let name = "copies_that_were_taken_and_never_made_are_seen_by_what_is_read_back_from_a_gpu";
    in_child(module_path!(), name, &[("HEADROOM_STUB_COPIES", "3")], || {
        let context = context();
        for check in [
            on_gpu::one_large_part,
            on_gpu::many_odd_pieces,
            on_gpu::every_second_piece,
            on_gpu::buffers_used_again,
            on_gpu::models_from_a_file,
        ] {
            let failed = check(&context).unwrap_err();
            let said = failed.message().unwrap_or_default();
            assert!(said.contains(" is 165, not ") || said.contains(" is 0, not "), "{said}");
        }
    });
}
