//! The stream-ordered pool: it grows in steps of 32 MiB and keeps what is freed until it is trimmed.

use std::ffi::c_void;

use crate::table::{INVALID_HANDLE, INVALID_VALUE, MIB, PAGE, Status, Table, call, in_context, put};

const STEP: u64 = 32 * MIB;

#[derive(Default)]
pub struct Pool {
    pub device: usize,
    pub threshold: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub used: u64,
    pub used_high: u64,
}

pub struct Pooled {
    pub pool: u64,
    pub bytes: u64,
}

/// The leading fields of the driver's description of a pool.
#[repr(C)]
pub struct Properties {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolCreate(pool: *mut u64, properties: *const Properties) -> Status {
    call(|table| {
        // SAFETY: the caller hands in a description, or null.
        let properties = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
        if properties.kind != 1 || properties.location_kind != 1 || properties.handle_types != 0 {
            return Err(INVALID_VALUE);
        }
        let device = table.device(properties.location)?;
        let number = table.new_number();
        table.pools.insert(number, Pool { device, ..Pool::default() });
        put(pool, number)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: u64) -> Status {
    call(|table| {
        let gone = table.pools.remove(&pool).ok_or(INVALID_HANDLE)?;
        table.pooled.retain(|_, pooled| pooled.pool != pool);
        table.give(gone.device, gone.reserved);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: *mut c_void) -> Status {
    call(|table| {
        let pool = table.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?;
        // SAFETY: these attributes are 64 bits wide.
        let value = unsafe { value.cast::<u64>().as_ref() }.copied().ok_or(INVALID_VALUE)?;
        match attribute {
            4 => pool.threshold = value,
            6 if value == 0 => pool.reserved_high = 0,
            8 if value == 0 => pool.used_high = 0,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: *mut c_void) -> Status {
    call(|table| {
        let pool = table.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        let told = match attribute {
            4 => pool.threshold,
            5 => pool.reserved,
            6 => pool.reserved_high,
            7 => pool.used,
            8 => pool.used_high,
            _ => return Err(INVALID_VALUE),
        };
        put(value.cast(), told)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: u64, least: usize) -> Status {
    call(|table| table.trim(pool, least as u64))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, number: u64, stream: u64) -> Status {
    in_context(|table, device| {
        let bytes = bytes as u64;
        let of_device = table.streams.get(&stream).is_some_and(|stream| stream.device == device);
        let pool = table.pools.get(&number).filter(|pool| pool.device == device && of_device).ok_or(INVALID_HANDLE)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let missing = (pool.used + bytes).saturating_sub(pool.reserved).next_multiple_of(STEP);
        table.take(device, missing)?;
        // Often right beside the one before.
        let start = table.addresses.place(bytes, 512);
        let pool = table.pools.get_mut(&number).ok_or(INVALID_HANDLE)?;
        pool.reserved += missing;
        pool.used += bytes;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        pool.used_high = pool.used_high.max(pool.used);
        table.pooled.insert(start, Pooled { pool: number, bytes });
        put(address, start)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: u64) -> Status {
    in_context(|table, device| {
        if table.streams.get(&stream).is_none_or(|stream| stream.device != device) {
            return Err(INVALID_HANDLE);
        }
        let Pooled { pool, bytes } = table.pooled.remove(&address).ok_or(INVALID_VALUE)?;
        table.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?.used -= bytes;
        Ok(())
    })
}

impl Table {
    fn trim(&mut self, number: u64, least: u64) -> Result<(), Status> {
        let pool = self.pools.get_mut(&number).ok_or(INVALID_HANDLE)?;
        let kept = pool.used.max(least).next_multiple_of(STEP).min(pool.reserved);
        let (device, given) = (pool.device, pool.reserved - kept);
        pool.reserved = kept;
        self.give(device, given);
        Ok(())
    }

    /// A stream was waited for: pools give back what their threshold does not let them keep.
    pub fn trim_after_wait(&mut self, device: usize) {
        let waiting: Vec<_> =
            self.pools.iter().filter(|(_, pool)| pool.device == device).map(|(n, p)| (*n, p.threshold)).collect();
        for (number, threshold) in waiting {
            let _ = self.trim(number, threshold.min(1 << 60));
        }
    }
}
