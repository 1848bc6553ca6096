//! Reserved addresses, memory handles, and what is mapped where.

use crate::table::{INVALID_HANDLE, INVALID_VALUE, PAGE, Status, Table, call, put};

/// Memory made for mapping.
pub struct Handle {
    pub device: usize,
    pub bytes: u64,
    /// Whether its maker still holds it; the memory lives until nobody does and it is mapped nowhere.
    pub is_held: bool,
    pub mapped: u64,
}

pub struct Mapping {
    pub bytes: u64,
    pub handle: u64,
    pub is_accessible: bool,
}

/// The leading fields of the driver's description of memory to be made.
#[repr(C)]
pub struct Properties {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

/// The driver's description of who may use memory.
#[repr(C)]
pub struct Access {
    location_kind: u32,
    location: i32,
    flags: u32,
}

const ON_DEVICE: u32 = 1;
const PINNED: u32 = 1;
const READ_AND_WRITE: u32 = 3;

fn device_of(table: &Table, properties: *const Properties) -> Result<usize, Status> {
    // SAFETY: the caller hands in a description, or null.
    let properties = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
    if properties.kind != PINNED || properties.location_kind != ON_DEVICE || properties.handle_types != 0 {
        return Err(INVALID_VALUE);
    }
    table.device(properties.location)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAllocationGranularity(bytes: *mut usize, of: *const Properties, _option: u32) -> Status {
    call(|table| device_of(table, of).and_then(|_| put(bytes, PAGE as usize)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressReserve(address: *mut u64, bytes: usize, _align: usize, _at: u64, _flags: u64) -> Status {
    call(|table| {
        let bytes = bytes as u64;
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return Err(INVALID_VALUE);
        }
        let start = table.addresses.place(bytes, PAGE);
        table.reserved.insert(start, bytes);
        put(address, start)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> Status {
    call(|table| {
        let is_whole = table.reserved.get(&address) == Some(&(bytes as u64));
        if !is_whole || table.mappings.range(address..address + bytes as u64).next().is_some() {
            return Err(INVALID_VALUE);
        }
        table.reserved.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemCreate(handle: *mut u64, bytes: usize, of: *const Properties, _flags: u64) -> Status {
    call(|table| {
        let (device, bytes) = (device_of(table, of)?, bytes as u64);
        if bytes == 0 || !bytes.is_multiple_of(PAGE) {
            return Err(INVALID_VALUE);
        }
        table.take(device, bytes)?;
        let number = table.new_number();
        table.handles.insert(number, Handle { device, bytes, is_held: true, mapped: 0 });
        put(handle, number)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> Status {
    call(|table| {
        let held = table.handles.get_mut(&handle).filter(|held| held.is_held).ok_or(INVALID_HANDLE)?;
        held.is_held = false;
        table.drop_unused(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, _flags: u64) -> Status {
    call(|table| {
        let bytes = bytes as u64;
        let end = address + bytes;
        let range = table.reserved.range(..=address).next_back();
        if range.is_none_or(|(base, length)| end > base + length) || offset != 0 {
            return Err(INVALID_VALUE);
        }
        let before = table.mappings.range(..end).next_back();
        if before.is_some_and(|(base, mapping)| base + mapping.bytes > address) {
            return Err(INVALID_VALUE);
        }
        let held = table.handles.get_mut(&handle).filter(|held| held.is_held).ok_or(INVALID_HANDLE)?;
        if held.bytes != bytes {
            return Err(INVALID_VALUE);
        }
        held.mapped += 1;
        table.mappings.insert(address, Mapping { bytes, handle, is_accessible: false });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(address: u64, bytes: usize, access: *const Access, count: usize) -> Status {
    call(|table| {
        // SAFETY: the caller hands in one description, or null.
        let access = unsafe { access.as_ref() }.ok_or(INVALID_VALUE)?;
        table.device(access.location)?;
        if count != 1 || access.location_kind != ON_DEVICE || access.flags != READ_AND_WRITE {
            return Err(INVALID_VALUE);
        }
        let end = address + bytes as u64;
        let mut at = address;
        while at < end {
            at += table.mappings.get(&at).ok_or(INVALID_VALUE)?.bytes;
        }
        if at != end {
            return Err(INVALID_VALUE);
        }
        table.mappings.range_mut(address..end).for_each(|(_, mapping)| mapping.is_accessible = true);
        table.accesses_set += 1;
        Ok(())
    })
}

/// Takes one mapping, as it was made.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> Status {
    call(|table| {
        if table.mappings.get(&address).is_none_or(|mapping| mapping.bytes != bytes as u64) {
            return Err(INVALID_VALUE);
        }
        let handle = table.mappings.remove(&address).map_or(0, |mapping| mapping.handle);
        let held = table.handles.get_mut(&handle).ok_or(INVALID_HANDLE)?;
        held.mapped -= 1;
        let device = held.device;
        table.note_freed(device);
        table.drop_unused(handle);
        Ok(())
    })
}

impl Table {
    fn drop_unused(&mut self, handle: u64) {
        let Some(held) = self.handles.get(&handle) else { return };
        if !held.is_held && held.mapped == 0 {
            let (device, bytes) = (held.device, held.bytes);
            self.handles.remove(&handle);
            self.give(device, bytes);
        }
    }

    /// Up to where memory of `device` that may be used is mapped without a gap, from the mapping that holds `start`.
    pub fn accessible_until(&self, device: usize, start: u64) -> u64 {
        let Some((&base, _)) = self.mappings.range(..=start).next_back() else { return start };
        let mut end = base;
        for (&at, mapping) in self.mappings.range(base..) {
            let of_device = self.handles.get(&mapping.handle).is_some_and(|handle| handle.device == device);
            if at != end || !mapping.is_accessible || !of_device {
                break;
            }
            end += mapping.bytes;
        }
        end
    }
}
