//! Messages as people paste them, of every wording, become figures and an explanation that follows from them.

use headroom_base::{GIB, KIB, MIB, Reading};
use proptest::prelude::*;

use super::{
    Api, Explanation, Finding, Help, OutOfMemory, ParseOomError, Short, Suggestion, explain, parse, parse_hardest,
};

fn gib(text: &str) -> u64 {
    format!("{text} GiB").parse::<headroom_base::Bytes>().unwrap().0
}

fn read(text: &str) -> (OutOfMemory, Explanation) {
    let oom = parse(text).expect(text);
    let explanation = explain(&oom);
    (oom, explanation)
}

fn environment(explanation: &Explanation) -> Option<&str> {
    explanation.help.iter().find_map(|suggestion| match &suggestion.help {
        Help::Environment { line, .. } => Some(line.as_str()),
        _ => None,
    })
}

// https://github.com/pytorch/pytorch/issues/35901
const SPLIT_SEGMENT: &str = "RuntimeError: CUDA out of memory. Tried to allocate 10.84 GiB (GPU 0; 23.65 GiB total \
    capacity; 1.06 GiB already allocated; 10.26 GiB free; 12.53 GiB reserved in total by PyTorch)";

#[test]
fn reserved_and_unused_memory_that_would_have_been_enough_is_called_stranded() {
    let (oom, explanation) = read(SPLIT_SEGMENT);
    assert_eq!(oom.requested_bytes, gib("10.84"));
    assert_eq!(oom.total_bytes, Reading::Bytes(gib("23.65")));
    assert_eq!(oom.free_bytes, Reading::Bytes(gib("10.26")));
    assert_eq!(oom.unallocated_bytes(), Reading::Bytes(gib("12.53") - gib("1.06")));
    assert!(matches!(explanation.findings[0], Finding::Stranded { .. }), "{:?}", explanation.findings);
    assert_eq!(environment(&explanation), Some("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
}

#[test]
fn the_wording_before_1_4_says_what_is_left_of_the_reserve() {
    let (oom, explanation) = read(
        "RuntimeError: CUDA out of memory. Tried to allocate 32.00 MiB (GPU 1; 7.79 GiB total capacity; 6.64 GiB \
         already allocated; 21.00 MiB free; 150.86 MiB cached)",
    );
    assert_eq!((oom.device, oom.requested_bytes), (Some(1), 32 * MIB));
    assert_eq!(oom.reserved_bytes.known().unwrap() - gib("6.64"), 150 * MIB + MIB * 86 / 100);
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
    assert_eq!(oom.total_bytes, Reading::Bytes(gib("44.98")));
    assert_eq!(oom.process_bytes, Reading::Bytes(gib("40.79")));
    assert_eq!(oom.others.iter().map(|other| other.pid).collect::<Vec<_>>(), [4_242, 77]);
    assert_eq!(oom.reserved_bytes, Reading::Bytes(40 * GIB));
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
    assert!(matches!(explanation.findings[..], [Finding::Stranded { .. }]), "{:?}", explanation.findings);
    assert_eq!(environment(&explanation), Some("PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"));
}

// https://github.com/ROCm/TheRock/issues/2118
#[test]
fn a_limit_far_below_the_device_is_named_and_free_memory_beyond_it_is_not_promised() {
    let (oom, explanation) = read(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB \
         of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with \
         17.00 MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(oom.limit_bytes, Reading::Bytes(gib("1.05")));
    let limited = Finding::Limited { limit_bytes: gib("1.05"), total_bytes: Reading::Bytes(gib("255.98")) };
    assert_eq!(explanation.findings[0], limited);
    assert!(explanation.findings.iter().all(|finding| !matches!(finding, Finding::DriverHadEnough { .. })));
    assert_eq!(explanation.help[0], Help::RaiseLimit { limit_bytes: gib("1.05") }.into());
}

// https://github.com/pytorch/pytorch/issues/175431
#[test]
fn free_memory_that_was_enough_points_outside_the_allocator() {
    let (oom, explanation) = read(
        "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB of which 203.49 GiB is \
         free. Of the allocated memory 68.63 GiB is allocated by PyTorch, and 14.93 GiB is reserved by PyTorch but \
         unallocated.",
    );
    assert_eq!(oom.device, Some(7));
    let enough = Finding::DriverHadEnough { requested_bytes: 2 * MIB, free_bytes: gib("203.49") };
    assert_eq!(explanation.findings, [enough]);
}

// https://github.com/kijai/ComfyUI-CCSR/issues/14
const POOL: &str = "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 9.28 \
    GiB\nRequested               : 4.00 GiB\nDevice limit            : 16.00 GiB\nFree (according to CUDA): 0 bytes\n\
    PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n";

#[test]
fn an_all_ones_figure_is_nonsense_and_never_a_size() {
    let (oom, explanation) = read(POOL);
    assert!(oom.stream_ordered);
    assert_eq!((oom.device, oom.requested_bytes), (Some(0), 4 * GIB));
    assert_eq!((oom.limit_bytes, oom.free_bytes), (Reading::Unknown, Reading::Bytes(0)));
    assert_eq!(oom.allocated_bytes, Reading::Bytes(gib("9.28")));
    assert_eq!(oom.nonsense, ["17179869184.00 GiB"]);
    assert_eq!(explanation.findings[0], Finding::DriverHadTooLittle { requested_bytes: 4 * GIB, free_bytes: 0 });
    assert!(explanation.findings.contains(&Finding::Nonsense { figures: vec!["17179869184.00 GiB".into()] }));
    assert!(explanation.findings.iter().all(|finding| !matches!(finding, Finding::Limited { .. })));
    let line = "PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:True";
    assert_eq!(environment(&explanation), Some(line));
}

// https://github.com/microsoft/WSL/issues/11050
#[test]
fn a_process_that_holds_nonsense_or_more_than_the_device_is_said_so() {
    let message = |held: &str| {
        format!(
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 15.99 GiB of which 0 bytes is \
             free. Including non-PyTorch memory, this process has {held} memory in use. Of the allocated memory 14.00 GiB \
             is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
        )
    };
    let (oom, explanation) = read(&message("17179869184.00 GiB"));
    assert_eq!(oom.process_bytes, Reading::Unknown);
    assert!(matches!(
        explanation.findings[..],
        [Finding::TooLittle { short_bytes: GIB, .. }, Finding::Nonsense { .. }]
    ));
    let (_, explanation) = read(&message("31.20 GiB"));
    let total_bytes = gib("15.99");
    assert!(explanation.findings.contains(&Finding::MoreThanDevice { process_bytes: gib("31.20"), total_bytes }));
    // https://github.com/YingqianWang/iPASSR/issues/9
    let (_, explanation) = read(
        "CUDA out of memory. Tried to allocate 1.73 GiB (GPU 0; 8.00 GiB total capacity; 17.20 GiB already allocated; 0 \
         bytes free; 19.15 GiB reserved in total by PyTorch)",
    );
    let expected = Finding::MoreThanDevice { process_bytes: gib("19.15"), total_bytes: 8 * GIB };
    assert!(explanation.findings.contains(&expected), "{:?}", explanation.findings);
}

// https://github.com/wxian3/NeuroLens/issues/2
#[test]
fn a_request_larger_than_the_device_is_said_before_anything_else_and_no_setting_is_offered() {
    let (_, explanation) = read(
        "CUDA out of memory. Tried to allocate 55.57 GiB. GPU 0 has a total capacty of 12.00 GiB of which 9.02 GiB is \
         free. Of the allocated memory 984.52 MiB is allocated by PyTorch, and 463.48 MiB is reserved by PyTorch but \
         unallocated.",
    );
    let larger = Finding::LargerThanDevice { requested_bytes: gib("55.57"), total_bytes: 12 * GIB };
    assert_eq!(explanation.findings, [larger]);
    assert_eq!(environment(&explanation), None);
}

#[test]
fn metal_and_xpu_are_read_too() {
    let (oom, explanation) = read(
        "RuntimeError: MPS backend out of memory (MPS allocated: 18.04 GiB, other allocations: 80.00 KiB, max allowed: \
         18.13 GiB). Tried to allocate 256.00 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable",
    );
    assert_eq!((oom.api, oom.requested_bytes), (Api::Mps, 256 * MIB));
    assert_eq!((oom.allocated_bytes, oom.limit_bytes), (Reading::Bytes(gib("18.04")), Reading::Bytes(gib("18.13"))));
    assert_eq!(environment(&explanation), None);
    let (oom, _) = read(
        "XPU out of memory. Tried to allocate 512.00 KiB. GPU 0 has a total capacity of 15.91 GiB of which 1.00 GiB is free.",
    );
    assert_eq!((oom.api, oom.requested_bytes, oom.allocated_bytes), (Api::Xpu, 512 * KIB, Reading::Unknown));
}

/// A message of a 12 GiB card: what was asked for, free, held by this process outside its tensors and unused.
fn message(requested_mib: u64, free_mib: u64, others_mib: u64, unused_mib: u64) -> String {
    let process_mib = 12 * 1024 - free_mib - others_mib;
    let allocated_mib = process_mib - unused_mib;
    format!(
        "CUDA out of memory. Tried to allocate {requested_mib}.00 MiB. GPU 0 has a total capacity of 12.00 GiB of which \
         {free_mib}.00 MiB is free. Including non-PyTorch memory, this process has {process_mib}.00 MiB memory in use. Of \
         the allocated memory {allocated_mib}.00 MiB is allocated by PyTorch, and {unused_mib}.00 MiB is reserved by \
         PyTorch but unallocated."
    )
}

#[test]
fn what_cannot_be_enough_alone_says_so_and_comes_after_what_can() {
    let bytes = 569 * MIB;
    // 1,348 MiB are missing from the driver; 128 of them lie unused in the allocator.
    let (_, explanation) = read(&message(2_048, 700, 569, 128));
    assert_eq!(explanation.help[0], Help::NeedLess { bytes: 1_220 * MIB }.into());
    let shorts: Vec<_> = explanation.help.iter().map(|suggestion| suggestion.short).collect();
    let setting = Short::StillMissing { gives_bytes: 128 * MIB, missing_bytes: 1_220 * MIB };
    let others = Short::OfMissing { gives_bytes: bytes, missing_bytes: 1_220 * MIB };
    assert_eq!(shorts, [None, Some(setting), Some(others), None]);
    let said = explanation.help[2].to_string();
    assert!(said.contains("569 MiB of the 1,220 MiB that are missing"), "{said}");
    let said = explanation.help[1].to_string();
    assert!(said.contains("the 128 MiB that are unused, and 1,220 MiB stay missing"), "{said}");
    // Others that hold enough go before a setting that is not.
    let (_, explanation) = read(&message(2_048, 700, 4_096, 128));
    let order = explanation.help.iter().map(|suggestion| &suggestion.help).collect::<Vec<_>>();
    assert!(
        matches!(
            order[..],
            [Help::NeedLess { .. }, Help::FreeOthers { .. }, Help::Environment { .. }, Help::RecordSnapshot]
        ),
        "{order:?}"
    );
    assert_eq!(explanation.help[1].short, None);
    // Enough with what is unused, and not without it.
    let (_, explanation) = read(&message(2_048, 700, 1_300, 128));
    let expected = Suggestion {
        help: Help::FreeOthers { bytes: 1_300 * MIB },
        short: Some(Short::WithUnused { unused_bytes: 128 * MIB }),
    };
    assert!(explanation.help.contains(&expected), "{:?}", explanation.help);
}

#[test]
fn a_setting_that_can_be_enough_is_recommended_without_reserve() {
    let (_, explanation) = read(&message(1_024, 700, 569, 1_200));
    assert_eq!(explanation.help[0].short, None);
    assert!(matches!(explanation.help[0].help, Help::Environment { .. }), "{:?}", explanation.help);
}

#[test]
fn below_a_limit_of_its_own_nothing_is_promised_of_what_others_give_back() {
    let limited =
        |limit: &str| message(2_048, 700, 4_096, 128).replace("is free.", &format!("is free. {limit} allowed;"));
    let (_, explanation) = read(&limited("7.40 GiB"));
    let others = explanation.help.iter().find(|suggestion| matches!(suggestion.help, Help::FreeOthers { .. })).unwrap();
    assert!(matches!(others.short, Some(Short::OfMissing { gives_bytes: 0, .. })), "{others:?}");
    // A limit that leaves all that is free reachable is not worth raising.
    let (_, explanation) = read(&limited("11.00 GiB"));
    let raises = |suggestion: &Suggestion| matches!(suggestion.help, Help::RaiseLimit { .. });
    assert!(!explanation.help.iter().any(raises), "{:?}", explanation.help);
}

#[test]
fn of_several_messages_the_one_in_which_most_is_missing_is_chosen_and_counted() {
    let (little, much) = (message(1_024, 700, 0, 100), message(4_096, 700, 0, 100));
    let chosen = |text: &str| {
        let hardest = parse_hardest(text).unwrap();
        (hardest.number, hardest.count, hardest.are_alike, hardest.oom.requested_bytes / MIB)
    };
    assert_eq!(chosen(&format!("{little}\nDuring handling of it: {much}")), (2, 2, false, 4_096));
    assert_eq!(chosen(&format!("{much}\nretry\n{little}\n{little}")), (1, 3, false, 4_096));
    assert_eq!(chosen(&format!("{little}\n{little}")), (1, 2, true, 1_024));
    assert_eq!(chosen(&little), (1, 1, true, 1_024));
    // What a program says of it in passing is no message of its own.
    assert_eq!(chosen(&format!("Warning: CUDA out of memory, retrying\n{much}")), (1, 1, true, 4_096));
}

#[test]
fn line_breaks_a_second_message_and_half_a_message_do_not_matter() {
    let (broken, _) = read(&SPLIT_SEGMENT.replace(' ', "\n   "));
    let (twice, _) = read(&format!("Traceback:\n{SPLIT_SEGMENT}\nDuring handling of it: {POOL}"));
    let (half, _) = read(SPLIT_SEGMENT.split_once("memory. ").unwrap().1);
    let (whole, _) = read(SPLIT_SEGMENT);
    assert_eq!(broken, whole);
    assert_eq!(twice, whole);
    assert_eq!(half, whole);
}

#[test]
fn decimal_units_are_read_as_the_binary_ones_and_said() {
    let (oom, explanation) = read("CUDA out of memory. Tried to allocate 2.00 GB (GPU 0; 8.00 GB total capacity)");
    assert_eq!((oom.requested_bytes, oom.total_bytes), (2 * GIB, Reading::Bytes(8 * GIB)));
    assert!(explanation.findings.contains(&Finding::DecimalUnits));
}

#[test]
fn a_text_without_such_a_message_is_refused_with_what_to_paste() {
    for text in ["", "Segmentation fault", "it ran out of disk"] {
        assert_eq!(parse(text), Err(ParseOomError::NoMessage), "{text}");
    }
    for text in ["CUDA out of memory.", "Allocation on device", "CUDA out of memory. Tried to allocate a lot"] {
        assert_eq!(parse(text), Err(ParseOomError::NoRequest), "{text}");
        assert!(parse(text).unwrap_err().to_string().contains("Tried to allocate"));
    }
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
            if let Ok(oom) = parse(&format!("{opening}{rest}")) {
                let _ = explain(&oom);
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
        let oom = parse(&text).unwrap();
        prop_assert_eq!(oom.limit_bytes, Reading::Bytes(allowed * MIB));
        prop_assert!(!explain(&oom).help.is_empty());
    }
}
