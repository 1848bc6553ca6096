//! Who holds the device's memory, as far as a message tells: this program never closes itself.

use super::*;

// https://github.com/ashleykleynhans/runpod-worker-a1111/issues/30
#[test]
fn a_program_that_a_container_hides_from_itself_is_not_another_one_to_close() {
    let text = "CUDA out of memory. Tried to allocate 58.00 MiB. GPU 0 has a total capacty of 23.54 GiB of which 17.75 MiB is \
                free. Process 333813 has 23.52 GiB memory in use. Of the allocated memory 23.01 GiB is allocated by PyTorch, \
                and 50.19 MiB is reserved by PyTorch but unallocated.";
    assert_says(&said(text), &["process 333813 is this program itself", "472 MiB of this process are outside"]);
    assert_never_says(&said(text), &["close other programs", "named process", "other programs hold"]);
    // Beside its own memory there is room for what another process holds.
    let other = text.replace("has 23.52 GiB", "has 19.00 GiB").replace("memory 23.01 GiB", "memory 4.00 GiB");
    assert_says(&said(&other), &["a named process holds 19.00 GiB", "close other programs"]);
    // What neither of them holds is somebody's.
    let less = other.replace("has 19.00 GiB", "has 15.00 GiB");
    assert_says(&said(&less), &["a named process holds 15.00 GiB", "4,581 MiB are neither free nor the allocator's"]);
    assert_never_says(&said(&other), &["this program itself"]);
}

// https://github.com/limuloo/3DIS/issues/8
#[test]
fn where_several_named_processes_could_be_this_program_none_is_to_be_closed() {
    let text = "CUDA out of memory. Tried to allocate 114.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 36.12 MiB is \
                free. Process 3051286 has 19.04 GiB memory in use. Process 3429391 has 4.56 GiB memory in use. Of the \
                allocated memory 4.16 GiB is allocated by PyTorch, and 26.03 MiB is reserved by PyTorch but unallocated.";
    assert_says(&said(text), &["one of the named processes is this program itself"]);
    assert_never_says(&said(text), &["close other programs"]);
    // Only one of them holds enough to be it: the rest are others.
    let rest =
        text.replace("3429391 has 4.56 GiB", "3429391 has 1.00 GiB").replace("memory 4.16 GiB", "memory 18.50 GiB");
    assert_says(&said(&rest), &["process 3051286 is this program itself", "a named process holds 1,024 MiB"]);
}

// https://github.com/instantX-research/Regional-Prompting-FLUX/issues/13
#[test]
fn a_process_that_holds_less_than_its_own_allocator_is_unknown_and_no_others_are_invented() {
    let text = "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 23.43 GiB of which 4.06 MiB is \
                free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated memory 23.03 GiB \
                is allocated by PyTorch, and 15.67 MiB is reserved by PyTorch but unallocated.";
    assert_says(
        &said(text),
        &["less than the 23.04 GiB of its allocator", "389.9 MiB are neither free nor the allocator's"],
    );
    assert_never_says(&said(text), &["other processes hold", "23.42 GiB"]);
}

// https://github.com/OPIXray-author/OPIXray/issues/5
#[test]
fn memory_that_nobody_is_said_to_hold_is_said() {
    let text = "CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 2.00 GiB total capacity; 788.51 MiB already allocated; \
                145.93 MiB free; 1.02 GiB reserved in total by PyTorch)";
    assert_says(&said(text), &["857.6 MiB are neither free nor the allocator's", "see which other programs"]);
    // A context alone takes as much.
    assert_never_says(&said(&text.replace("145.93", "800.00")), &["neither free nor"]);
}
