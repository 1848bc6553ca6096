//! Whole texts: several messages, wrapped lines, errors without figures, and what stands around them.

use super::super::{Api, Expandable, Figureless, ParseOomError};
use super::*;

#[test]
fn of_several_messages_the_one_in_which_most_is_missing_is_chosen_and_counted() {
    let (little, much) = (message(1_024, 700, 0, 100), message(4_096, 700, 0, 100));
    let chosen = |text: &str| {
        let hardest = read_text(text).unwrap().hardest().remove(0);
        (hardest.number, hardest.count, hardest.are_alike, hardest.oom.requested.bytes / MIB)
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
fn a_text_without_such_a_message_is_refused_with_what_to_paste() {
    for text in ["", "Segmentation fault", "it ran out of disk"] {
        assert_eq!(read_text(text), Err(ParseOomError::NoMessage), "{text}");
    }
    for text in [
        "CUDA out of memory.",
        "Allocation on device 0 would exceed allowed memory. (out of memory)",
        "CUDA out of memory. Tried to allocate a lot",
    ] {
        assert_eq!(read_text(text), Err(ParseOomError::NoRequest), "{text}");
        assert!(read_text(text).unwrap_err().to_string().contains("Tried to allocate"));
    }
}

#[test]
fn messages_of_two_devices_are_each_chosen_from() {
    let first = message(1_024, 700, 0, 100);
    let second = message(4_096, 700, 0, 100).replace("GPU 0", "GPU 1");
    let hardest = read_text(&format!("{first}\n{second}\n{first}")).unwrap().hardest();
    let chosen: Vec<_> = hardest.iter().map(|one| (one.oom.device, one.number, one.count, one.are_alike)).collect();
    assert_eq!(chosen, [(Some(0), 1, 2, true), (Some(1), 2, 1, true)]);
}

#[test]
fn lines_that_a_console_broke_anywhere_are_read_as_whole_ones() {
    for text in [SPLIT_SEGMENT.to_owned(), message(2_048, 700, 569, 128), POOL.to_owned()] {
        let letters: Vec<char> = text.chars().collect();
        for columns in 5..130 {
            let lines: Vec<String> = letters.chunks(columns).map(|line| line.iter().collect()).collect();
            assert_eq!(read(&lines.join("\n")), read(&text), "{columns}");
            let trimmed: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
            assert_eq!(read(&trimmed.join("\r\n")), read(&text), "{columns}");
        }
    }
}

#[test]
fn colours_between_the_words_of_a_message_do_not_matter() {
    let bold = SPLIT_SEGMENT.replace("10.84", "\u{1b}[1;36m10.84\u{1b}[0m").replace('(', "\u{1b}[1m(\u{1b}[0m");
    assert_ne!(bold, SPLIT_SEGMENT);
    assert_eq!(read(&bold), read(SPLIT_SEGMENT));
}

#[test]
fn a_message_in_a_string_of_json_is_read_as_it_is() {
    let logged = format!("{{\"exception_message\": \"{}\"}}", POOL.replace('\n', "\\n"));
    assert_eq!(read(&logged), read(POOL));
}

#[test]
fn errors_without_figures_are_named_with_what_can_be_done() {
    let errors = [
        // https://github.com/lllyasviel/stable-diffusion-webui-forge/issues/2524
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be reported late", Figureless::Driver),
        // https://github.com/QwenLM/Qwen3/issues/873
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Figureless::Blas),
        // https://github.com/KupynOrest/DeblurGAN/issues/128
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Figureless::Dnn),
        // The name of cuDNN 9, broken by a console; both names are one error.
        (
            "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_\nALLOCATION_FAILED\nCUDNN_STATUS_ALLOC_FAILED",
            Figureless::Dnn,
        ),
        // https://github.com/deepakn97/relationPrediction/issues/37
        (
            "Unable to find a valid cuDNN algorithm to run convolution (try_all at Conv.cpp:693)",
            Figureless::Convolution,
        ),
        // https://github.com/fal-ai/fal/pull/478
        (
            "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":830",
            Figureless::Assertion,
        ),
        // https://github.com/Comfy-Org/ComfyUI/issues/5166
        ("**Exception Message:** Allocation on device \n## Stack Trace", Figureless::BareAllocation),
    ];
    for (text, error) in errors {
        let pasted = read_text(text).unwrap();
        assert_eq!((pasted.messages.len(), pasted.figureless), (0, vec![error]), "{text}");
        assert!(error.help().iter().any(|help| help.contains("headroom advise")), "{error:?}");
    }
}

/// What cuDNN could not take from the host, and its other errors, say nothing of the device's memory.
#[test]
fn other_errors_of_cudnn_are_no_want_of_memory_on_the_device() {
    for status in ["EXECUTION_FAILED", "INTERNAL_ERROR", "NOT_INITIALIZED", "INTERNAL_ERROR_HOST_ALLOCATION_FAILED"] {
        let text = format!("RuntimeError: cuDNN error: CUDNN_STATUS_{status}");
        assert!(read_text(&text).is_err(), "{text}");
    }
}

// https://github.com/Comfy-Org/ComfyUI/issues/5828
#[test]
fn host_memory_that_ran_out_is_not_the_devices() {
    let pasted = read_text("DefaultCPUAllocator: not enough memory: you tried to allocate 5242880 bytes.").unwrap();
    let [error] = pasted.figureless[..] else { panic!("{pasted:?}") };
    assert_says(&error.meaning(), &["not the device's", "5 MiB were asked for"]);
    assert_never_says(&error.help().join("\n"), &["torch.cuda", "tiles"]);
}

// https://github.com/ROCm/legacy-rocm-build/issues/4358
#[test]
fn ranges_that_grow_are_not_recommended_where_they_cannot_be_had() {
    let message = "HIP out of memory. Tried to allocate 4.50 GiB. GPU 0 has a total capacity of 15.98 GiB of which 1.40 GiB is \
                   free. Of the allocated memory 8.26 GiB is allocated by PyTorch, and 4.80 GiB is reserved by PyTorch but \
                   unallocated. Try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";
    let warned =
        format!("UserWarning: expandable_segments not supported on this platform (Triggered internally)\n{message}");
    // https://github.com/Comfy-Org/ComfyUI/issues/2431
    let windows = format!("File \"D:\\ComfyUI\\execution.py\", line 154\n{message}");
    for (text, why) in [(warned, Expandable::SaidUnsupported), (windows, Expandable::Windows)] {
        let (_, explanation) = read(&text);
        assert!(explanation.findings.contains(&Finding::NotExpandable(why)), "{explanation:?}");
        assert!(!environment(&explanation).unwrap().contains("expandable_segments"), "{explanation:?}");
    }
    assert_says(environment(&read(message).1).unwrap(), &["expandable_segments:True"]);
    let pool = format!("File \"C:\\a.py\"\n{POOL}");
    assert_eq!(environment(&read(&pool).1), Some("PYTORCH_CUDA_ALLOC_CONF=backend:native"));
}

#[test]
fn the_variable_that_a_text_names_is_the_one_that_is_set() {
    let text = message(1_024, 700, 569, 1_200);
    for variable in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
        let named = format!("{text} Try setting {variable}=expandable_segments:True to avoid fragmentation.");
        assert_eq!(environment(&read(&named).1), Some(format!("{variable}=expandable_segments:True").as_str()));
        // https://github.com/Comfy-Org/ComfyUI/issues/13112: messages of HIP name the variable of CUDA at times.
        let (oom, explanation) = read(&named.replace("CUDA out", "HIP out"));
        assert_eq!((oom.api, oom.variable), (Api::Hip, variable));
        assert_says(environment(&explanation).unwrap(), &[variable]);
    }
}

#[test]
fn no_advice_for_cuda_is_given_for_xpu_and_metal() {
    let xpu = message(1_024, 700, 569, 1_200).replace("CUDA", "XPU");
    let metal = "MPS backend out of memory (MPS allocated: 18.04 GiB, other allocations: 80.00 KiB, max allowed: 18.13 GiB). \
                 Tried to allocate 256.00 MiB on private pool.";
    for text in [xpu.as_str(), metal] {
        assert_never_says(&said(text), &["torch.cuda", "CUDA", "expandable_segments", "max_split_size_mb"]);
    }
}
