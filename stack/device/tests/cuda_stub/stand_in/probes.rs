//! What the tests ask of the stand-in itself.

use crate::streams::Work;
use crate::table::{CURRENT, Status, table};

/// How much of each kind is live, in the order of the tests' own list.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_live(kind: u32) -> u64 {
    let table = table();
    let count = match kind {
        0 => table.devices.iter().map(|device| device.contexts as usize).sum(),
        1 => table.plain.len(),
        2 => table.reserved.len(),
        3 => table.handles.len(),
        4 => table.mappings.len(),
        5 => table.pools.len(),
        6 => table.pooled.len(),
        7 => table.streams.len(),
        8 => table.events.len(),
        9 => table.pinned.len(),
        _ => usize::MAX,
    };
    count as u64
}

/// What this process holds on a device of the machine.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_own_bytes(device: u32) -> u64 {
    table().devices[device as usize].own_bytes
}

#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_set_others_bytes(device: u32, bytes: u64) {
    table().devices[device as usize].others_bytes = bytes;
}

/// 0: contexts ever made. 1: memory given back under work. 2: how often access was set. 3: calls made.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_ever(kind: u32) -> u64 {
    let table = table();
    match kind {
        0 => table.contexts_made,
        1 => table.freed_under_work,
        2 => table.accesses_set,
        3 => table.calls,
        _ => u64::MAX,
    }
}

/// Lets the `n`-th call from now fail with `code`; 0 lets none fail.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_fail(n: u64, code: Status) {
    let mut table = table();
    table.fail_at = if n == 0 { 0 } else { table.calls + n };
    table.fail_with = code;
}

/// Whether the planted failure has happened.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_has_failed() -> bool {
    let table = table();
    table.fail_at > 0 && table.calls >= table.fail_at
}

/// Gives a stream a piece of work that takes until somebody waits.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_give_kernel(stream: u64) -> bool {
    table().give_work(stream, Work::Kernel).is_ok()
}

/// The byte at a device address; 0 where nothing was written.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_byte(address: u64) -> u8 {
    table().contents.byte(address)
}

/// The calling thread's context.
#[unsafe(no_mangle)]
pub extern "C" fn headroom_stub_current() -> u64 {
    CURRENT.get()
}
