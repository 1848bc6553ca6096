//! Why a request failed, as far as a message tells, and no further.

use super::super::Possibility;
use super::*;

// https://github.com/ROCm/TheRock/issues/2118
#[test]
fn a_limit_far_below_the_device_is_named_and_free_memory_beyond_it_is_not_promised() {
    let (oom, explanation) = read(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB \
         of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with \
         17.00 MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(known(oom.limit), Reading::Bytes(gib("1.05")));
    let limited = Finding::Limited { limit_bytes: gib("1.05"), total_bytes: Some(gib("255.98")) };
    assert_eq!(explanation.findings[0], limited);
    assert!(explanation.findings.iter().all(|finding| !matches!(finding, Finding::DriverHadEnough { .. })));
    assert_eq!(explanation.help[0], Help::RaiseLimit { limit_bytes: gib("1.05") }.into());
}

// https://github.com/pytorch/pytorch/issues/175431
#[test]
fn free_memory_that_was_enough_leaves_several_possibilities() {
    let (oom, explanation) = read(
        "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB of which 203.49 GiB is \
         free. Of the allocated memory 68.63 GiB is allocated by PyTorch, and 14.93 GiB is reserved by PyTorch but \
         unallocated.",
    );
    assert_eq!(oom.device, Some(7));
    let enough = Finding::DriverHadEnough { requested_bytes: 2 * MIB, free_bytes: gib("203.49") };
    assert_eq!(explanation.findings[0], enough);
    assert!(explanation.findings.contains(&Finding::Perhaps(Possibility::Unused { bytes: gib("14.93") })));
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
    assert_eq!(known(oom.process), Reading::Unknown);
    assert!(matches!(
        explanation.findings[..],
        [Finding::TooLittle { short_bytes: GIB, .. }, Finding::Unaccounted { .. }, Finding::Nonsense { .. }]
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

// https://github.com/pytorch/pytorch/issues/111363
#[test]
fn enough_free_memory_at_a_round_share_of_the_device_points_at_a_limit_and_never_at_other_programs() {
    let text = "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacty of 79.15 GiB of which 38.09 GiB is \
                free. Including non-PyTorch memory, this process has 41.06 GiB memory in use. Of the allocated memory 39.10 \
                GiB is allocated by PyTorch, and 427.46 MiB is reserved by PyTorch but unallocated.";
    assert_says(&said(text), &["stands at 0.50 of the device", "raise the limit of 39.57 GiB"]);
    assert_never_says(&said(text), &["another process", "close other programs"]);
    // Elsewhere it stands at no such share.
    let elsewhere = text.replace("39.10 GiB", "38.60 GiB");
    assert_never_says(&said(&elsewhere), &["of the device within", "raise the limit"]);
}

// https://github.com/jhc13/taggui/issues/188
#[test]
fn enough_free_memory_may_not_lie_in_one_piece_and_ranges_that_grow_need_none() {
    let text = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 4.00 GiB of which 2.35 GiB is \
                free. Of the allocated memory 825.15 MiB is allocated by PyTorch, and 24.85 MiB is reserved by PyTorch but \
                unallocated. If reserved but unallocated memory is large try setting \
                PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";
    let perhaps: Vec<_> = read(text).1.findings.into_iter().filter(|f| matches!(f, Finding::Perhaps(_))).collect();
    let expected = [Possibility::Limit { hundredths: None }, Possibility::NotContiguous, Possibility::GivenBackSince];
    assert_eq!(perhaps, expected.map(Finding::Perhaps));
    assert_says(
        &said(text),
        &["set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "need no free memory in one piece"],
    );
    assert_never_says(&said(text), &["another process took", "need at least", "see which other programs"]);
    // A request that is most of what is held is at any share of the device by accident.
    let first = text.replace("20.00 MiB", "2.00 GiB").replace("825.15", "0.00").replace("24.85", "0.00");
    assert_never_says(&said(&first), &["0.50 of the device"]);
    // https://github.com/Comfy-Org/ComfyUI/issues/10435
    let unused = text.replace("4.00 GiB", "19.98 GiB").replace("24.85 MiB", "3.47 GiB");
    assert_says(&said(&unused), &["perhaps the 3,553.3 MiB that the allocator holds unused", "free pieces join"]);
}

// https://github.com/invoke-ai/InvokeAI/issues/2182
#[test]
fn enough_free_memory_while_the_computers_own_ran_out_points_there_first() {
    let text = "DefaultCPUAllocator: not enough memory: you tried to allocate 13107200 bytes.\n  File \"D:\\ldm\\model.py\"\n\
                CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; 802.50 KiB already allocated; \
                6.59 GiB free; 2.00 MiB reserved in total by PyTorch)";
    let (_, explanation) = read(text);
    let host = explanation
        .findings
        .iter()
        .position(|finding| *finding == Finding::Perhaps(Possibility::HostMemory { is_said: true }));
    let piece =
        explanation.findings.iter().position(|finding| *finding == Finding::Perhaps(Possibility::NotContiguous));
    assert!(host < piece && host.is_some(), "{explanation:?}");
    assert!(explanation.help.contains(&Help::FreeHost.into()), "{explanation:?}");
}

// https://github.com/Comfy-Org/ComfyUI/issues/7440
#[test]
fn metal_counts_other_allocations_and_names_its_own_remedy() {
    let metal = |allocated: &str, other: &str, most: &str, asked: &str| {
        said(&format!(
            "MPS backend out of memory (MPS allocated: {allocated}, other allocations: {other}, max allowed: {most}). Tried \
             to allocate {asked} on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory \
             allocations (may cause system failure)."
        ))
    };
    let close = metal("9.57 GiB", "17.35 GiB", "27.20 GiB", "292.50 MiB");
    assert_says(&close, &["26.92 GiB held", "of 27.20 GiB that are allowed", "within the printed precision"]);
    // https://github.com/Comfy-Org/ComfyUI/issues/7372
    let asked = metal("17.68 GB", "3.95 MB", "18.13 GB", "1024.00 MB");
    assert_says(&asked, &["567.2 MiB too much", "need at least 567.2 MiB less"]);
    // https://github.com/pinokiocomputer/pinokio/issues/941
    let over = metal("16.00 GB", "3.31 GB", "18.13 GB", "256 bytes");
    assert_says(&over, &["256 bytes were asked for", "1,208.3 MiB too much"]);
    for said in [close, asked, over] {
        assert_says(&said, &["PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", "warns that the system may fail"]);
        assert_never_says(&said, &["unknown", "0.000", "torch.cuda", "set_per_process_memory_fraction"]);
    }
}

// https://github.com/intel/intel-extension-for-pytorch/issues/629
#[test]
fn what_the_driver_had_free_is_unknown_where_it_is_not_said_and_never_none() {
    let xpu = |asked: &str, allocated: &str, reserved: &str| {
        said(&format!(
            "XPU out of memory. Tried to allocate {asked} (GPU 0; 15.56 GiB total capacity; {allocated} already allocated; \
             {reserved} reserved in total by PyTorch)"
        ))
    };
    let empty = xpu("1.71 GiB", "0 bytes", "0 bytes");
    assert_says(&empty, &["what the driver had free is not said"]);
    assert_never_says(&empty, &["missing whatever", "need at least", "torch.cuda"]);
    // https://github.com/Comfy-Org/ComfyUI/issues/8767: what is in no tensor is all that can have been free.
    let full = xpu("5.12 GiB", "13.40 GiB", "13.90 GiB").replace("15.56", "15.11");
    assert_says(&full, &["2,211.8 MiB that are in no tensor", "3,031 MiB are missing whatever the allocator does"]);
    assert_never_says(&full, &["expandable_segments"]);
}

// https://github.com/intel/intel-extension-for-pytorch/issues/629
#[test]
fn a_platform_that_says_how_large_a_block_may_be_states_its_own_cause() {
    let text = "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate \
                6.85 GiB (GPU  0; 15.56 GiB total capacity; 0 bytes already allocated; 0 bytes reserved in total by PyTorch)";
    assert_says(&said(text), &["no block larger than 4,096 MiB", "ask for less than 4,096 MiB at once"]);
    assert_never_says(&said(text), &["missing", "need at least", "torch.cuda", "expandable_segments"]);
}

// https://github.com/Xilluill/KV-Edit/issues/16
#[test]
fn memory_that_was_moved_to_the_host_is_said_first_and_no_setting_is_offered() {
    let text = "CUDA out of memory. Tried to allocate 252.00 MiB. GPU 0 has a total capacity of 6.00 GiB of which 0 bytes is \
                free. Of the allocated memory 20.56 GiB is allocated by PyTorch, and 25.86 MiB is reserved by PyTorch but \
                unallocated. If reserved but unallocated memory is large try setting \
                PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";
    for text in [text.to_owned(), text.replace("25.86 MiB", "1.00 GiB"), text.replace("252.00 MiB", "10.73 GiB")] {
        let (_, explanation) = read(&text);
        assert!(matches!(explanation.findings[0], Finding::MoreThanDevice { .. }), "{explanation:?}");
        assert_eq!(environment(&explanation), None);
    }
    // All of it has to fit the device.
    assert_says(&said(text), &["need at least 14.80 GiB less"]);
}

// https://github.com/AIFSH/ComfyUI-ChatTTS/issues/9
#[test]
fn of_a_pool_that_does_not_say_what_is_unused_the_need_is_a_bound_after_the_setting() {
    let text = "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 6.89 GiB\n\
                Requested               : 320.00 MiB\nDevice limit            : 23.69 GiB\n\
                Free (according to CUDA): 2.94 MiB\n";
    let (_, explanation) = read(text);
    assert!(matches!(explanation.help[0].help, Help::Environment { .. }), "{explanation:?}");
    let at_most_bytes = Some(320 * MIB - (294 * MIB).div_ceil(100));
    assert_eq!(explanation.help[1], Help::NeedSomeLess { at_most_bytes }.into());
    assert_never_says(&said(text), &["need at least"]);
    // What is in no tensor cannot be enough: then as much is missing for sure.
    let full = said(&text.replace("6.89 GiB", "23.60 GiB"));
    assert_says(&full, &["need at least 227.8 MiB less"]);
}

// https://github.com/ShannonAI/Self_Explaining_Structures_Improve_NLP_Models/issues/6
#[test]
fn what_two_decimals_do_not_tell_is_not_missing_for_sure() {
    let text = "Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; 2.88 MiB free; 1.25 \
                GiB reserved in total by PyTorch)";
    assert_says(&said(text), &["within the printed precision, so nothing is missing for sure"]);
    assert_never_says(&said(text), &["missing whatever", "need at least"]);
}

#[test]
fn figures_that_contradict_each_other_are_named_and_nothing_is_concluded() {
    let message = |total: &str, used: &str, free: &str, reserved: &str| {
        said(&format!(
            "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; {total} GiB total capacity; {used} GiB already allocated; \
             {free} GiB free; {reserved} GiB reserved in total by PyTorch)"
        ))
    };
    let contradictions = [
        (message("16.00", "14.00", "1.00", "12.00"), "14.00 GiB allocated of 12.00 GiB reserved"),
        (message("16.00", "11.00", "20.00", "12.00"), "20.00 GiB free of 16.00 GiB in total"),
    ];
    for (said, words) in contradictions {
        assert_says(&said, &["contradict each other", words, "paste the message again"]);
        assert_never_says(&said, &["missing", "need ", "PYTORCH_CUDA_ALLOC_CONF"]);
    }
    // Within the printed precision they agree.
    assert_never_says(&message("16.00", "12.01", "1.00", "12.00"), &["contradict"]);
}

// https://github.com/light-and-ray/sd-webui-replacer/issues/74
#[test]
fn figures_come_back_with_the_decimals_that_were_pasted() {
    let text = "CUDA out of memory. Tried to allocate 27.12 GiB. GPU 0 has a total capacty of 11.99 GiB of which 0 bytes is \
                free. Of the allocated memory 16.16 GiB is allocated by PyTorch, and 144.59 MiB is reserved by PyTorch but \
                unallocated.";
    assert_says(&said(text), &["27.12 GiB", "11.99 GiB"]);
    assert_never_says(&said(text), &["27.11", "11.98"]);
}
