//! Every wording is read, of every kind of device.

use headroom_base::KIB;
use proptest::prelude::*;

use super::super::{Api, Short, Suggestion};
use super::*;

#[test]
fn reserved_and_unused_memory_that_would_have_been_enough_is_called_stranded() {
    let (oom, explanation) = read(SPLIT_SEGMENT);
    assert_eq!(oom.requested.bytes, gib("10.84"));
    assert_eq!(known(oom.total), Reading::Bytes(gib("23.65")));
    assert_eq!(known(oom.free), Reading::Bytes(gib("10.26")));
    assert_eq!(known(oom.unallocated), Reading::Bytes(gib("12.53") - gib("1.06")));
    assert!(matches!(explanation.findings[0], Finding::Stranded { .. }), "{:?}", explanation.findings);
    assert_eq!(environment(&explanation), Some("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
}

#[test]
fn the_wording_before_1_4_says_what_is_left_of_the_reserve() {
    let (oom, explanation) = read(
        "RuntimeError: CUDA out of memory. Tried to allocate 32.00 MiB (GPU 1; 7.79 GiB total capacity; 6.64 GiB \
         already allocated; 21.00 MiB free; 150.86 MiB cached)",
    );
    assert_eq!((oom.device, oom.requested.bytes), (Some(1), 32 * MIB));
    assert_eq!(oom.reserved.unwrap().bytes - gib("6.64"), 150 * MIB + (MIB * 86).div_ceil(100));
    assert!(matches!(explanation.findings[0], Finding::Stranded { .. }));
}

#[test]
fn the_wording_since_2_1_names_processes_and_what_is_outside_the_allocator() {
    let (oom, explanation) = read(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.01 GiB. GPU 0 has a total capacty of \
         44.98 GiB of which 1.69 GiB is free. Process 4242 has 2.00 GiB memory in use. Process 77 has 512.00 MiB memory \
         in use. Including non-PyTorch memory, this process has 40.79 GiB memory in use. Of the allocated memory 38.00 \
         GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 2.00 GiB is \
         reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb",
    );
    assert_eq!(known(oom.total), Reading::Bytes(gib("44.98")));
    assert_eq!(known(oom.process), Reading::Bytes(gib("40.79")));
    assert_eq!(oom.others.iter().map(|other| other.pid).collect::<Vec<_>>(), [4_242, 77]);
    assert_eq!(known(oom.reserved), Reading::Bytes(40 * GIB));
    let short_bytes = gib("5.01") - gib("1.69") - 2 * GIB;
    let unused_bytes = gib("1.69") + 2 * GIB;
    let expected = [
        Finding::TooLittle { requested_bytes: gib("5.01"), unused_bytes, short_bytes },
        Finding::OutsideAllocator { bytes: gib("40.79") - 40 * GIB },
        Finding::OthersHold { bytes: 2 * GIB + 512 * MIB, processes: 2 },
        Finding::PrivatePools { bytes: GIB },
    ];
    assert_eq!(explanation.findings, expected);
    assert_eq!(explanation.help[0], Help::NeedLess { bytes: short_bytes }.into());
    let short = Some(Short::WithUnused { unused_bytes: 2 * GIB });
    let others = Suggestion { help: Help::FreeOthers { bytes: 2 * GIB + 512 * MIB }, short };
    assert!(explanation.help.contains(&others), "{:?}", explanation.help);
}

// https://github.com/pytorch/pytorch/issues/138002
#[test]
fn a_message_of_hip_names_the_variable_of_hip() {
    let (oom, explanation) = read(
        "!!! Exception during processing !!! HIP out of memory. Tried to allocate 6.64 GiB. GPU 0 has a total capacity of \
         19.92 GiB of which 6.22 GiB is free. Of the allocated memory 5.34 GiB is allocated by PyTorch, and 7.10 GiB is \
         reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
         PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    );
    assert_eq!(oom.api, Api::Hip);
    assert!(matches!(explanation.findings[0], Finding::Stranded { .. }), "{:?}", explanation.findings);
    assert_eq!(environment(&explanation), Some("PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"));
}

#[test]
fn an_all_ones_figure_is_nonsense_and_never_a_size() {
    let (oom, explanation) = read(POOL);
    assert!(oom.stream_ordered);
    assert_eq!((oom.device, oom.requested.bytes), (Some(0), 4 * GIB));
    assert_eq!((known(oom.limit), known(oom.free)), (Reading::Unknown, Reading::Bytes(0)));
    assert_eq!(known(oom.allocated), Reading::Bytes(gib("9.28")));
    assert_eq!(oom.nonsense, ["17179869184.00 GiB"]);
    assert_eq!(explanation.findings[0], Finding::DriverHadTooLittle { requested_bytes: 4 * GIB, free_bytes: 0 });
    assert!(explanation.findings.contains(&Finding::Nonsense { figures: vec!["17179869184.00 GiB".into()] }));
    assert!(explanation.findings.iter().all(|finding| !matches!(finding, Finding::Limited { .. })));
    let line = "PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:True";
    assert_eq!(environment(&explanation), Some(line));
}

#[test]
fn metal_and_xpu_are_read_too() {
    let (oom, explanation) = read(
        "RuntimeError: MPS backend out of memory (MPS allocated: 18.04 GiB, other allocations: 80.00 KiB, max allowed: \
         18.13 GiB). Tried to allocate 256.00 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable",
    );
    assert_eq!((oom.api, oom.requested.bytes), (Api::Mps, 256 * MIB));
    assert_eq!((known(oom.allocated), known(oom.limit)), (Reading::Bytes(gib("18.04")), Reading::Bytes(gib("18.13"))));
    assert_eq!(environment(&explanation), None);
    let (oom, _) = read(
        "XPU out of memory. Tried to allocate 512.00 KiB. GPU 0 has a total capacity of 15.91 GiB of which 1.00 GiB is free.",
    );
    assert_eq!((oom.api, oom.requested.bytes, known(oom.allocated)), (Api::Xpu, 512 * KIB, Reading::Unknown));
}

#[test]
fn decimal_units_are_read_as_the_binary_ones_and_said() {
    let (oom, explanation) = read("CUDA out of memory. Tried to allocate 2.00 GB (GPU 0; 8.00 GB total capacity)");
    assert_eq!((oom.requested.bytes, known(oom.total)), (2 * GIB, Reading::Bytes(8 * GIB)));
    assert!(explanation.findings.contains(&Finding::DecimalUnits));
}

#[test]
fn every_finding_and_every_help_is_a_sentence_with_its_numbers() {
    for text in [SPLIT_SEGMENT, POOL] {
        let (_, explanation) = read(text);
        let said: Vec<String> = explanation.findings.iter().map(ToString::to_string).collect();
        let tried: Vec<String> = explanation.help.iter().map(ToString::to_string).collect();
        assert!(said[0].contains("iB were asked for") && !tried.is_empty(), "{said:?} {tried:?}");
    }
}

proptest! {
    #[test]
    fn any_text_after_the_opening_is_read_or_refused_and_never_a_panic(rest in ".{0,300}") {
        for opening in ["CUDA out of memory. Tried to allocate ", "Allocation on device ", "Requested : 1 GiB (GPU "] {
            if let Ok(pasted) = read_text(&format!("{opening}{rest}")) {
                pasted.messages.iter().for_each(|oom| drop(explain(oom)));
            }
        }
    }

    #[test]
    fn figures_that_contradict_each_other_never_panic(figures in prop::collection::vec(0_u64..40_000, 6)) {
        let [asked, total, used, free, reserved, allowed] = figures[..] else { unreachable!() };
        let text = format!(
            "CUDA out of memory. Tried to allocate {asked}.00 MiB (GPU 0; {total}.00 MiB total capacity; {used}.00 MiB \
             already allocated; {free}.00 MiB free; {allowed}.00 MiB allowed; {reserved}.00 MiB reserved in total by PyTorch)"
        );
        let (oom, explanation) = read(&text);
        prop_assert_eq!(known(oom.limit), Reading::Bytes(allowed * MIB));
        prop_assert!(!explanation.help.is_empty());
    }
}
