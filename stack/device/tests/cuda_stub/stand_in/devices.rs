//! The devices of the stand-in, from the environment, and the calls that describe them.

use std::ffi::{CStr, c_char};

use crate::table::{INVALID_VALUE, MIB, NO_DEVICE, SUCCESS, Status, described, entered, number_of, put, put_text};

/// A device of the machine, whether or not the process may use it.
pub struct Device {
    pub uuid: [u8; 16],
    pub name: String,
    pub total_bytes: u64,
    /// What other processes hold.
    pub others_bytes: u64,
    /// What this process holds, its context included.
    pub own_bytes: u64,
    /// How often its context was retained.
    pub contexts: u64,
}

impl Device {
    pub fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.others_bytes + self.own_bytes)
    }

    /// The UUID as the management library spells it.
    pub fn uuid_text(&self) -> String {
        let hex: Vec<String> = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [0..4, 4..6, 6..8, 8..10, 10..16].map(|part| hex[part].concat());
        format!("GPU-{}", parts.join("-"))
    }
}

/// `HEADROOM_STUB_DEVICES` of them (2); the first has `HEADROOM_STUB_MEMORY_MIB` (24 GiB), each further one half of the
/// one before.
pub fn devices() -> Vec<Device> {
    let first = number_of("HEADROOM_STUB_MEMORY_MIB", 24 * 1024) * MIB;
    let count = number_of("HEADROOM_STUB_DEVICES", 2);
    let device = |index: u64| Device {
        uuid: std::array::from_fn(|at| (0xa0 + index as usize * 16 + at) as u8),
        name: format!("Stand-in {index}"),
        total_bytes: first >> index,
        others_bytes: 0,
        own_bytes: 0,
        contexts: 0,
    };
    (0..count).map(device).collect()
}

/// What `CUDA_VISIBLE_DEVICES` leaves of `count` devices, in its order; it may name places in the machine's list.
pub fn visible(count: usize) -> Vec<usize> {
    let Ok(text) = std::env::var("CUDA_VISIBLE_DEVICES") else { return (0..count).collect() };
    text.split(',').map_while(|part| part.trim().parse().ok()).take_while(|&index| index < count).collect()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut i32) -> Status {
    entered(|_| put(version, number_of("HEADROOM_STUB_VERSION", 13_000) as i32))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> Status {
    entered(|table| {
        let planted = number_of("HEADROOM_STUB_INIT", 0) as Status;
        if planted != SUCCESS {
            return Err(planted);
        }
        if table.visible.is_empty() {
            return Err(NO_DEVICE);
        }
        table.started = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut i32) -> Status {
    described(|table| put(count, table.visible.len() as i32))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> Status {
    described(|table| table.device(ordinal).and_then(|_| put(device, ordinal)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) -> Status {
    described(|table| put(uuid, table.devices[table.device(device)?].uuid))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut u8, length: i32, device: i32) -> Status {
    described(|table| put_text(name, length as usize, &table.devices[table.device(device)?].name))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> Status {
    described(|table| put(bytes, table.devices[table.device(device)?].total_bytes as usize))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> Status {
    described(|table| {
        table.device(device)?;
        match attribute {
            // The compute capability.
            75 => put(value, number_of("HEADROOM_STUB_CAPABILITY", 9) as i32),
            76 => put(value, 0),
            // Virtual memory and memory pools.
            102 => put(value, number_of("HEADROOM_STUB_VIRTUAL_MEMORY", 1) as i32),
            115 => put(value, 1),
            _ => Err(INVALID_VALUE),
        }
    })
}

const NAMES: [(Status, &CStr, &CStr); 9] = [
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", c"system has unsupported display driver / cuda driver combination"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// Asking for words is not a call that can be made to fail.
fn words(
    code: Status,
    place: *mut *const c_char,
    choose: fn(&(Status, &'static CStr, &'static CStr)) -> &'static CStr,
) -> Status {
    match NAMES.iter().find(|(known, ..)| *known == code) {
        Some(entry) => put(place, choose(entry).as_ptr()).err().unwrap_or(SUCCESS),
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: Status, name: *mut *const c_char) -> Status {
    words(code, name, |entry| entry.1)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: Status, text: *mut *const c_char) -> Status {
    words(code, text, |entry| entry.2)
}
