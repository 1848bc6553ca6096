//! Streams with work that is done when somebody waits for it, events that mark it, and pinned host memory.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::VecDeque;

use crate::table::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, PAGE, Status, Table, in_context, number_of, put};

/// A place in a stream: everything given to it before.
#[derive(Clone, Copy)]
pub struct Mark {
    pub stream: u64,
    pub given: u64,
}

pub enum Work {
    /// Something that takes until it is waited for.
    Kernel,
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Wait(Mark),
}

pub struct Stream {
    pub device: usize,
    /// What it takes of the device.
    pub bytes: u64,
    pub work: VecDeque<Work>,
    /// How many pieces of work it was ever given.
    pub given: u64,
}

/// Takes a page of the device; a context comes with room for its first.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: *mut u64, _flags: u32) -> Status {
    in_context(|table, device| {
        let is_first = table.streams.values().all(|stream| stream.device != device);
        let bytes = if is_first { 0 } else { PAGE };
        table.take(device, bytes)?;
        let number = table.new_number();
        table.streams.insert(number, Stream { device, bytes, work: VecDeque::new(), given: 0 });
        put(stream, number)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: u64) -> Status {
    in_context(|table, _| {
        let Stream { device, bytes, .. } = table.streams.remove(&stream).ok_or(INVALID_HANDLE)?;
        table.give(device, bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: u64) -> Status {
    in_context(|table, device| {
        // The default stream is always there, and nothing here is given to it that would take until later.
        if stream != 0 {
            table.run(stream, u64::MAX)?;
        }
        table.trim_after_wait(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) -> Status {
    in_context(|table, _| match *table.events.get(&event).ok_or(INVALID_HANDLE)? {
        Some(mark) => table.give_work(stream, Work::Wait(mark)),
        None => Ok(()),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: *mut u64, _flags: u32) -> Status {
    in_context(|table, _| {
        let number = table.new_number();
        table.events.insert(number, None);
        put(event, number)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: u64, stream: u64) -> Status {
    in_context(|table, _| {
        let given = table.streams.get(&stream).ok_or(INVALID_HANDLE)?.given;
        *table.events.get_mut(&event).ok_or(INVALID_HANDLE)? = Some(Mark { stream, given });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: u64) -> Status {
    in_context(|table, _| match *table.events.get(&event).ok_or(INVALID_HANDLE)? {
        Some(mark) => table.run(mark.stream, mark.given),
        None => Ok(()),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: u64) -> Status {
    in_context(|table, _| table.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE))
}

fn layout(bytes: usize) -> Result<Layout, Status> {
    Layout::from_size_align(bytes, 4096).map_err(|_| INVALID_VALUE)
}

/// What may be pinned in all: `HEADROOM_STUB_PINNED_KIB` (as much as there is).
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(address: *mut u64, bytes: usize, _flags: u32) -> Status {
    in_context(|table, _| {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let pinned: usize = table.pinned.values().sum();
        if (pinned + bytes) as u64 / 1024 > number_of("HEADROOM_STUB_PINNED_KIB", u64::MAX) {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout(bytes)?) } as u64;
        if start == 0 {
            return Err(OUT_OF_MEMORY);
        }
        table.pinned.insert(start, bytes);
        put(address, start)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: u64) -> Status {
    in_context(|table, _| {
        let bytes = table.pinned.remove(&address).ok_or(INVALID_VALUE)?;
        let reads_it = |work: &Work| match work {
            Work::Copy { from, .. } => (address..address + bytes as u64).contains(from),
            Work::Kernel | Work::Wait(_) => false,
        };
        if table.streams.values().any(|stream| stream.work.iter().any(reads_it)) {
            table.freed_under_work += 1;
        }
        // SAFETY: it was allocated here with this layout, and is in the table no more.
        unsafe { dealloc(address as *mut u8, layout(bytes)?) };
        Ok(())
    })
}

impl Table {
    pub fn give_work(&mut self, stream: u64, work: Work) -> Result<(), Status> {
        let stream = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        stream.work.push_back(work);
        stream.given += 1;
        Ok(())
    }

    /// Does a stream's work up to `given` pieces of all it was ever given.
    pub fn run(&mut self, stream: u64, given: u64) -> Result<(), Status> {
        loop {
            let Some(found) = self.streams.get_mut(&stream) else { return Err(INVALID_HANDLE) };
            let done = found.given - found.work.len() as u64;
            if done >= given {
                return Ok(());
            }
            match found.work.pop_front() {
                None => return Ok(()),
                Some(Work::Kernel) => {}
                Some(Work::Copy { to, from, bytes }) => self.write(to, from as *const u8, bytes),
                // The other stream may be gone, and then its work was done.
                Some(Work::Wait(mark)) => self.run(mark.stream, mark.given).unwrap_or_default(),
            }
        }
    }
}
