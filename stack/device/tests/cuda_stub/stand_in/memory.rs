//! Plain device memory, the figures of a device, and copies to it and from it.

use std::ffi::c_void;

use crate::streams::Work;
use crate::table::{INVALID_VALUE, PAGE, Plain, Status, Table, in_context, put};

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    in_context(|table, device| {
        let device = &table.devices[device];
        put(free, device.free_bytes() as usize)?;
        put(total, device.total_bytes as usize)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Status {
    in_context(|table, device| {
        let bytes = bytes as u64;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        table.take(device, bytes)?;
        let start = table.addresses.place(bytes, PAGE);
        table.plain.insert(start, Plain { device, bytes });
        put(address, start)
    })
}

/// Unlike the real one it does not wait for anybody, so that whoever relies on that is seen.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> Status {
    in_context(|table, _| {
        let Plain { device, bytes } = table.plain.remove(&address).ok_or(INVALID_VALUE)?;
        table.note_freed(device);
        table.give(device, bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) -> Status {
    in_context(|table, device| {
        if !table.is_writable(device, to, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        table.write(to, from, bytes);
        Ok(())
    })
}

/// From pinned memory the contents are read when the stream comes to it, as the real one may; from other memory at once.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, stream: u64) -> Status {
    in_context(|table, device| table.copy_later(device, (to, from, bytes), stream))
}

/// Several such copies. The default stream takes none, and a stretch of nothing is an error.
///
/// # Safety
/// The lists are as long as `count` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyBatchAsync_v2(
    to: *mut u64,
    from: *mut u64,
    bytes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    attribute_starts: *mut usize,
    attribute_count: usize,
    stream: u64,
) -> Status {
    in_context(|table, device| {
        // Real drivers were reported to crash on tens of thousands.
        if count > 10_000 {
            return Err(INVALID_VALUE);
        }
        if stream == 0 || count == 0 || attribute_count != 1 || attributes.is_null() || attribute_starts.is_null() {
            return Err(INVALID_VALUE);
        }
        for index in 0..count {
            // SAFETY: the caller hands in lists of that length.
            let (to, from, bytes) = unsafe { (*to.add(index), *from.add(index), *bytes.add(index)) };
            if bytes == 0 {
                return Err(INVALID_VALUE);
            }
            table.copy_later(device, (to, from as *const u8, bytes), stream)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) -> Status {
    in_context(|table, device| {
        if !table.is_writable(device, from, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller hands in a buffer of that length.
        table.contents.read(from, unsafe { std::slice::from_raw_parts_mut(to, bytes) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: u8, bytes: usize) -> Status {
    in_context(|table, device| {
        if !table.is_writable(device, to, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        table.contents.write(to, &vec![value; bytes]);
        Ok(())
    })
}

impl Table {
    /// Notes a copy `(to, from, bytes)` for the stream's turn, or makes it at once from memory that is not pinned.
    fn copy_later(
        &mut self,
        device: usize,
        (to, from, bytes): (u64, *const u8, usize),
        stream: u64,
    ) -> Result<(), Status> {
        if !self.is_writable(device, to, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        self.copies += 1;
        if self.copies > self.copies_made {
            return Ok(());
        }
        let start = from as u64;
        let pinned = self.pinned.range(..=start).next_back();
        if pinned.is_some_and(|(base, length)| start + bytes as u64 <= base + *length as u64) {
            return self.give_work(stream, Work::Copy { to, from: start, bytes });
        }
        self.run(stream, u64::MAX)?;
        self.write(to, from, bytes);
        Ok(())
    }

    pub fn write(&mut self, to: u64, from: *const u8, bytes: usize) {
        // SAFETY: the caller hands in memory of that length that lives until the copy is done.
        let contents = unsafe { std::slice::from_raw_parts(from, bytes) };
        self.contents.write(to, contents);
    }

    /// Memory of `device` is given back: nothing may be left to do on its streams.
    pub fn note_freed(&mut self, device: usize) {
        if self.streams.values().any(|stream| stream.device == device && !stream.work.is_empty()) {
            self.freed_under_work += 1;
        }
    }

    /// Whether all of a range is memory of `device` that may be written.
    fn is_writable(&self, device: usize, start: u64, bytes: u64) -> bool {
        let holds = |base: u64, length: u64| base <= start && start + bytes <= base + length;
        let plain = self.plain.range(..=start).next_back();
        if plain.is_some_and(|(base, plain)| plain.device == device && holds(*base, plain.bytes)) {
            return true;
        }
        let pooled = self.pooled.range(..=start).next_back();
        if pooled.is_some_and(|(base, pooled)| holds(*base, pooled.bytes) && self.pools[&pooled.pool].device == device)
        {
            return true;
        }
        self.accessible_until(device, start) >= start + bytes
    }
}
