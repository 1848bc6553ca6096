//! Everything the stand-in holds, and how each call enters it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::addresses::Addresses;
use crate::contents::Contents;
use crate::devices::{Device, devices, visible};
use crate::pools::{Pool, Pooled};
use crate::streams::{Mark, Stream};
use crate::virtual_memory::{Handle, Mapping};

/// What a call answers: the driver's codes.
pub type Status = i32;
pub const SUCCESS: Status = 0;
pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const NOT_INITIALIZED: Status = 3;
pub const DEVICE_UNAVAILABLE: Status = 46;
pub const NO_DEVICE: Status = 100;
pub const INVALID_DEVICE: Status = 101;
pub const INVALID_CONTEXT: Status = 201;
pub const INVALID_HANDLE: Status = 400;

/// After these the context is lost: every later call that works in it answers the same, until the process ends.
const LASTING: [Status; 9] = [700, 702, 710, 714, 715, 716, 717, 718, 719];

pub const MIB: u64 = 1 << 20;
/// Memory is handed out in these.
pub const PAGE: u64 = 2 * MIB;

/// Plain device memory.
pub struct Plain {
    pub device: usize,
    pub bytes: u64,
}

#[derive(Default)]
pub struct Table {
    pub devices: Vec<Device>,
    /// The devices that the process may use, in its order.
    pub visible: Vec<usize>,
    pub started: bool,
    pub addresses: Addresses,
    pub plain: BTreeMap<u64, Plain>,
    pub reserved: BTreeMap<u64, u64>,
    pub handles: BTreeMap<u64, Handle>,
    pub mappings: BTreeMap<u64, Mapping>,
    pub pools: BTreeMap<u64, Pool>,
    pub pooled: BTreeMap<u64, Pooled>,
    pub streams: BTreeMap<u64, Stream>,
    pub events: BTreeMap<u64, Option<Mark>>,
    pub pinned: BTreeMap<u64, usize>,
    pub contents: Contents,
    /// Memory that was freed or unmapped while a stream of its device still had work.
    pub freed_under_work: u64,
    /// Contexts that were ever made.
    pub contexts_made: u64,
    /// How often access was set.
    pub accesses_set: u64,
    /// Copies that streams were given.
    pub copies: u64,
    /// How many of these are made; later ones are taken and lost, as if they had been made.
    pub copies_made: u64,
    pub calls: u64,
    pub fail_at: u64,
    pub fail_with: Status,
    /// The answer to every call from now on.
    lost: Option<Status>,
    numbers: u64,
    taken_numbers: BTreeSet<u64>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(|| {
    let devices = devices();
    let visible = visible(devices.len());
    let copies_made = number_of("HEADROOM_STUB_COPIES", u64::MAX);
    Mutex::new(Table { devices, visible, copies_made, ..Table::default() })
});

thread_local! {
    /// The calling thread's context: the device's place in the table, from 1 on, or 0 for none.
    pub static CURRENT: Cell<u64> = const { Cell::new(0) };
}

pub fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters a call of the driver that needs it to be started: counts it, lets it fail if it is its turn.
pub fn call(body: impl FnOnce(&mut Table) -> Result<(), Status>) -> Status {
    described(|table| table.lost.map_or_else(|| body(table), Err))
}

/// The same for calls that a lost context answers too: they only tell what there is, or whose context is which.
pub fn described(body: impl FnOnce(&mut Table) -> Result<(), Status>) -> Status {
    entered(|table| if table.started { body(table) } else { Err(NOT_INITIALIZED) })
}

/// The same for calls that need no started driver.
pub fn entered(body: impl FnOnce(&mut Table) -> Result<(), Status>) -> Status {
    let mut table = table();
    table.calls += 1;
    if table.calls == table.fail_at {
        let planted = table.fail_with;
        if LASTING.contains(&planted) {
            table.lost = Some(planted);
        }
        return planted;
    }
    body(&mut table).err().unwrap_or(SUCCESS)
}

/// The same for calls that need a context: `body` is given its device.
pub fn in_context(body: impl FnOnce(&mut Table, usize) -> Result<(), Status>) -> Status {
    call(|table| {
        let device = (CURRENT.get() as usize).checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if table.devices.get(device).is_none_or(|device| device.contexts == 0) {
            return Err(INVALID_CONTEXT);
        }
        body(table, device)
    })
}

/// Writes an answer where the caller wants it.
pub fn put<T>(place: *mut T, value: T) -> Result<(), Status> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller of the driver hands in a place of this type.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes text and its end into a buffer of `length` bytes.
pub fn put_text(place: *mut u8, length: usize, text: &str) -> Result<(), Status> {
    if place.is_null() || length <= text.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a caller of the driver hands in a buffer of that length, and the text is shorter.
    let buffer = unsafe { std::slice::from_raw_parts_mut(place, length) };
    buffer[..text.len()].copy_from_slice(text.as_bytes());
    buffer[text.len()] = 0;
    Ok(())
}

pub fn number_of(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl Table {
    /// A number that nothing else has: for handles, streams, pools, events.
    pub fn new_number(&mut self) -> u64 {
        self.numbers += 1;
        let number = 0x10_0000 + 16 * self.numbers;
        assert!(self.taken_numbers.insert(number));
        number
    }

    /// The device at a place of the process's list.
    pub fn device(&self, ordinal: i32) -> Result<usize, Status> {
        let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        self.visible.get(ordinal).copied().ok_or(INVALID_DEVICE)
    }

    /// Takes device memory in whole pages.
    pub fn take(&mut self, device: usize, bytes: u64) -> Result<(), Status> {
        let bytes = bytes.next_multiple_of(PAGE);
        let device = &mut self.devices[device];
        if bytes > device.free_bytes() {
            return Err(OUT_OF_MEMORY);
        }
        device.own_bytes += bytes;
        Ok(())
    }

    pub fn give(&mut self, device: usize, bytes: u64) {
        self.devices[device].own_bytes -= bytes.next_multiple_of(PAGE);
    }
}
