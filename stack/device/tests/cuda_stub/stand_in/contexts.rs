//! Primary contexts, and which one is a thread's.

use crate::table::{CURRENT, DEVICE_UNAVAILABLE, INVALID_CONTEXT, MIB, Status, call, described, number_of, put};

fn context_bytes() -> u64 {
    number_of("HEADROOM_STUB_CONTEXT_MIB", 524) * MIB
}

/// `HEADROOM_STUB_HELD=1`: another process holds every device for itself, as the compute mode lets it.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> Status {
    call(|table| {
        let device = table.device(device)?;
        if table.devices[device].contexts == 0 {
            if number_of("HEADROOM_STUB_HELD", 0) == 1 {
                return Err(DEVICE_UNAVAILABLE);
            }
            table.take(device, context_bytes())?;
            table.contexts_made += 1;
        }
        table.devices[device].contexts += 1;
        put(context, device as u64 + 1)
    })
}

/// The last release frees what was allocated in the context.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Status {
    described(|table| {
        let device = table.device(device)?;
        table.devices[device].contexts = table.devices[device].contexts.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if table.devices[device].contexts == 0 {
            table.give(device, context_bytes());
            let (gone, kept) =
                std::mem::take(&mut table.plain).into_iter().partition(|(_, plain)| plain.device == device);
            table.plain = kept;
            let gone: std::collections::BTreeMap<_, _> = gone;
            gone.values().for_each(|plain| table.give(device, plain.bytes));
            let gone = table.streams.extract_if(.., |_, stream| stream.device == device);
            let bytes: Vec<_> = gone.map(|(_, stream)| stream.bytes).collect();
            bytes.into_iter().for_each(|bytes| table.give(device, bytes));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: *mut u64) -> Status {
    described(|_| put(context, CURRENT.get()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: u64) -> Status {
    described(|table| {
        let device = table.devices.get((context as usize).wrapping_sub(1));
        if context != 0 && device.is_none_or(|device| device.contexts == 0) {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    })
}
