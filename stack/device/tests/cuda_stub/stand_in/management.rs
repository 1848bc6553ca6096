//! The management library: every device of the machine in the machine's order, whatever the process may use.

use std::ffi::{CStr, c_char};

use crate::table::{MIB, Status, Table, number_of, put, put_text, table};

const INVALID: Status = 2;
const NOT_SUPPORTED: Status = 3;
const NOT_FOUND: Status = 6;
const TOO_SMALL: Status = 7;

/// What the driver keeps of a device for itself.
const KEPT: u64 = 615 * MIB;

#[repr(C)]
pub struct Memory {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
pub struct Process {
    pid: u32,
    used: u64,
    instance: u32,
    compute_instance: u32,
}

fn with(body: impl FnOnce(&mut Table) -> Result<(), Status>) -> Status {
    body(&mut table()).err().unwrap_or(0)
}

/// A device's handle is its place in the machine's list, from 1 on.
fn of(table: &Table, device: u64) -> Result<&crate::devices::Device, Status> {
    table.devices.get((device as usize).wrapping_sub(1)).ok_or(INVALID)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Status {
    // Code 9: the kernel module is not loaded.
    if number_of("HEADROOM_STUB_NVML_STARTS", 1) == 1 { 0 } else { 9 }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Status {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(text: *mut u8, length: u32) -> Status {
    let major = number_of("HEADROOM_STUB_NVML_DRIVER", 580);
    put_text(text, length as usize, &format!("{major}.0.1")).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(_device: u64, current: *mut u32, pending: *mut u32) -> Status {
    let mode = number_of("HEADROOM_STUB_NVML_MIG", 0) as u32;
    put(current, mode).and_then(|()| put(pending, mode)).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut u32) -> Status {
    with(|table| put(count, table.devices.len() as u32))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut u64) -> Status {
    with(|table| of(table, u64::from(index) + 1).and_then(|_| put(device, u64::from(index) + 1)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut u64) -> Status {
    with(|table| {
        // SAFETY: the caller hands in text that ends in a zero byte.
        let uuid = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
        let known = number_of("HEADROOM_STUB_NVML_KNOWS", 1) == 1;
        let found = table.devices.iter().position(|device| known && device.uuid_text() == uuid);
        put(device, found.ok_or(NOT_FOUND)? as u64 + 1)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: u64, text: *mut u8, length: u32) -> Status {
    with(|table| put_text(text, length as usize, &of(table, device)?.uuid_text()))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(device: u64, text: *mut u8, length: u32) -> Status {
    with(|table| put_text(text, length as usize, &of(table, device)?.name))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: u64, memory: *mut Memory) -> Status {
    with(|table| {
        let device = of(table, device)?;
        let used = device.others_bytes + device.own_bytes;
        let total = device.total_bytes + KEPT;
        put(memory, Memory { version: 2 << 24 | 40, total, reserved: KEPT, free: device.total_bytes - used, used })
    })
}

/// `HEADROOM_STUB_NVML_PROCESSES` is `all`, `others` (this process is not listed, as in a container) or `denied`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(device: u64, count: *mut u32, list: *mut Process) -> Status {
    with(|table| {
        let device = of(table, device)?;
        let shown = std::env::var("HEADROOM_STUB_NVML_PROCESSES").unwrap_or_else(|_| "all".to_owned());
        if shown == "denied" {
            return Err(NOT_SUPPORTED);
        }
        let whole = u32::MAX;
        let process = |pid, used| Process { pid, used, instance: whole, compute_instance: whole };
        let mut processes = vec![process(1, device.others_bytes)];
        if shown == "all" && device.own_bytes > 0 {
            processes.push(process(std::process::id(), device.own_bytes));
        }
        // SAFETY: the caller hands in the length of its list.
        let room = unsafe { count.as_ref() }.copied().ok_or(INVALID)? as usize;
        put(count, processes.len() as u32)?;
        if room < processes.len() || list.is_null() {
            return Err(TOO_SMALL);
        }
        for (at, process) in processes.into_iter().enumerate() {
            // SAFETY: the list has room for them all.
            put(unsafe { list.add(at) }, process)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrPcieLinkGeneration(_device: u64, value: *mut u32) -> Status {
    with(|_| put(value, 1))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrPcieLinkWidth(_device: u64, value: *mut u32) -> Status {
    with(|_| put(value, 16))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMaxPcieLinkGeneration(_device: u64, value: *mut u32) -> Status {
    with(|_| put(value, 5))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMaxPcieLinkWidth(_device: u64, value: *mut u32) -> Status {
    with(|_| put(value, 16))
}
