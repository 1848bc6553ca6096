//! Addresses and the pages behind them: what expandable segments are made of.

use std::collections::BTreeMap;

use cudarc::driver::sys::{
    self, CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};

use super::status::check;
use crate::driver::{DriverCall, DriverError};

/// A page of memory of its own handle, and where it is.
#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: u64,
    handle: CUmemGenericAllocationHandle,
    /// False only where the driver refused to put it back after a failed unmapping.
    is_mapped: bool,
}

/// What of a device's virtual memory this process holds. Its calls expect the context to be the calling thread's.
#[derive(Debug)]
pub(super) struct VirtualMemory {
    device: CUdevice,
    /// Reserved ranges: where they begin and their lengths.
    reserved: BTreeMap<u64, u64>,
    /// Pages that somebody asked for, by address.
    pages: BTreeMap<u64, Page>,
    /// Pages that are still mapped although the call that mapped them failed: the driver refused to take them back.
    stray_pages: BTreeMap<u64, Page>,
    /// Memory behind no address that the driver refused to take back.
    stray_handles: Vec<CUmemGenericAllocationHandle>,
}

impl VirtualMemory {
    pub(super) fn of_device(device: CUdevice) -> Self {
        Self {
            device,
            reserved: BTreeMap::new(),
            pages: BTreeMap::new(),
            stray_pages: BTreeMap::new(),
            stray_handles: Vec::new(),
        }
    }

    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.reserved.is_empty()
            && self.pages.is_empty()
            && self.stray_pages.is_empty()
            && self.stray_handles.is_empty()
    }

    /// The unit in which the driver hands out pages.
    pub(super) fn granularity_bytes(&self) -> Result<u64, DriverError> {
        let properties = properties(self.device);
        let mut bytes = 0_usize;
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: both places are valid for the call.
        let answer = unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, least) };
        check(DriverCall::Reserve, answer)?;
        Ok(bytes as u64)
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, DriverError> {
        let mut address: CUdeviceptr = 0;
        // SAFETY: the place is valid for writing; no address and no alignment is asked for.
        let answer = unsafe { sys::cuMemAddressReserve(&raw mut address, bytes as usize, 0, 0, 0) };
        check(DriverCall::Reserve, answer)?;
        self.reserved.insert(address, bytes);
        Ok(address)
    }

    pub(super) fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.take_strays_back();
        if self.reserved.get(&address) != Some(&bytes) {
            return Err(refused(DriverCall::Release, "no range of this size was reserved at this address"));
        }
        if self.pages.range(address..address + bytes).next().is_some() {
            return Err(refused(DriverCall::Release, "memory is still mapped in this range"));
        }
        // SAFETY: the range was reserved with this size, and nothing is mapped in it.
        check(DriverCall::Release, unsafe { sys::cuMemAddressFree(address, bytes as usize) })?;
        self.reserved.remove(&address);
        Ok(())
    }

    /// Maps whole pages: all of the range, or nothing.
    pub(super) fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.take_strays_back();
        self.check_range(DriverCall::Map, address, bytes, page_bytes)?;
        let is_taken = |pages: &BTreeMap<u64, Page>| pages.range(address..address + bytes).next().is_some();
        if is_taken(&self.pages) || is_taken(&self.stray_pages) {
            return Err(refused(DriverCall::Map, "memory is already mapped in this range"));
        }
        let mut mapped: Vec<(u64, Page)> = Vec::new();
        let result = starts(address, bytes, page_bytes)
            .try_for_each(|start| {
                mapped.push((start, self.new_page(start, page_bytes)?));
                Ok(())
            })
            // Once for all of it: that is what mapping costs most.
            .and_then(|()| self.give_access(address, bytes));
        match result {
            Ok(()) => self.pages.extend(mapped),
            Err(_) => mapped.into_iter().for_each(|(start, page)| self.take_back(start, page)),
        }
        result
    }

    /// Unmaps whole pages of the range and gives them back: all of it, or nothing.
    ///
    /// Nothing may use them any more.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.take_strays_back();
        self.check_range(DriverCall::Unmap, address, bytes, page_bytes)?;
        if starts(address, bytes, page_bytes)
            .any(|start| self.pages.get(&start).is_none_or(|page| page.bytes != page_bytes))
        {
            return Err(refused(DriverCall::Unmap, "no memory is mapped in this range"));
        }
        // First all addresses, then the memory: as long as the memory is held, a failure can be undone.
        for start in starts(address, bytes, page_bytes) {
            if let Err(error) = self.set_mapped(start, false) {
                self.map_again(address, start, page_bytes);
                return Err(error);
            }
        }
        for start in starts(address, bytes, page_bytes) {
            if let Some(page) = self.pages.remove(&start) {
                self.drop_handle(page.handle);
            }
        }
        Ok(())
    }

    /// Gives everything back, as far as the driver takes it; what it refuses is offered once more. Nothing may use it any
    /// more.
    pub(super) fn clear(&mut self) {
        for (start, page) in std::mem::take(&mut self.pages) {
            self.take_back(start, page);
        }
        for _ in 0..2 {
            self.take_strays_back();
            self.reserved.retain(|&address, &mut bytes| {
                // SAFETY: the range was reserved with this size; where something is still mapped in it, the driver refuses.
                let answer = unsafe { sys::cuMemAddressFree(address, bytes as usize) };
                answer != CUresult::CUDA_SUCCESS
            });
        }
    }

    fn check_range(&self, call: DriverCall, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        let range = self.reserved.range(..=address).next_back();
        let Some((base, length)) = range.filter(|(base, length)| address + bytes <= *base + *length) else {
            return Err(refused(call, "these addresses were not reserved"));
        };
        debug_assert!(*base <= address && bytes <= *length);
        if page_bytes == 0 || bytes == 0 || !bytes.is_multiple_of(page_bytes) {
            return Err(refused(call, "the range is no whole number of pages"));
        }
        Ok(())
    }

    /// New memory behind the addresses from `start` on.
    fn new_page(&mut self, start: u64, bytes: u64) -> Result<Page, DriverError> {
        let properties = properties(self.device);
        let mut handle: CUmemGenericAllocationHandle = 0;
        // SAFETY: both places are valid for the call.
        let answer = unsafe { sys::cuMemCreate(&raw mut handle, bytes as usize, &raw const properties, 0) };
        check(DriverCall::Map, answer)?;
        // SAFETY: the addresses were reserved and nothing is mapped there; the handle is new and of this size.
        let answer = unsafe { sys::cuMemMap(start, bytes as usize, 0, handle, 0) };
        check(DriverCall::Map, answer).inspect_err(|_| self.drop_handle(handle))?;
        Ok(Page { bytes, handle, is_mapped: true })
    }

    fn give_access(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        let access = CUmemAccessDesc {
            location: location(self.device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: every page of the range is mapped; one description is given, as the count says.
        check(DriverCall::Map, unsafe { sys::cuMemSetAccess(address, bytes as usize, &raw const access, 1) })
    }

    /// Unmaps or maps a page that is held, unless it is so already.
    fn set_mapped(&mut self, start: u64, mapped: bool) -> Result<(), DriverError> {
        let Some(page) = self.pages.get_mut(&start).filter(|page| page.is_mapped != mapped) else { return Ok(()) };
        let bytes = page.bytes as usize;
        // SAFETY: the table says where the page is and whether it is mapped; nothing uses it while it is not.
        let answer = unsafe {
            if mapped { sys::cuMemMap(start, bytes, 0, page.handle, 0) } else { sys::cuMemUnmap(start, bytes) }
        };
        check(DriverCall::Unmap, answer)?;
        page.is_mapped = mapped;
        Ok(())
    }

    /// Puts the pages of `address..end` back where they were. A page that the driver refuses stays held and unmapped, and
    /// can still be given back.
    fn map_again(&mut self, address: u64, end: u64, page_bytes: u64) {
        for start in starts(address, end - address, page_bytes) {
            let again = self.set_mapped(start, true).and_then(|()| self.give_access(start, page_bytes));
            if let Err(error) = again {
                tracing::warn!(%error, address = start, "a page that could not be unmapped with others is lost to use");
            }
        }
    }

    /// Unmaps a page that is in no table, and gives its memory back; what the driver refuses is a stray.
    fn take_back(&mut self, start: u64, page: Page) {
        // SAFETY: the page is mapped there with this size, and nothing uses it.
        let unmapped =
            !page.is_mapped || unsafe { sys::cuMemUnmap(start, page.bytes as usize) } == CUresult::CUDA_SUCCESS;
        if unmapped {
            self.drop_handle(page.handle);
        } else {
            self.stray_pages.insert(start, page);
        }
    }

    fn drop_handle(&mut self, handle: CUmemGenericAllocationHandle) {
        // SAFETY: the handle is held once and mapped nowhere.
        if unsafe { sys::cuMemRelease(handle) } != CUresult::CUDA_SUCCESS {
            self.stray_handles.push(handle);
        }
    }

    fn take_strays_back(&mut self) {
        for (start, page) in std::mem::take(&mut self.stray_pages) {
            self.take_back(start, page);
        }
        for handle in std::mem::take(&mut self.stray_handles) {
            self.drop_handle(handle);
        }
    }
}

fn starts(address: u64, bytes: u64, page_bytes: u64) -> impl Iterator<Item = u64> {
    (address..address + bytes).step_by(page_bytes as usize)
}

fn refused(call: DriverCall, reason: &str) -> DriverError {
    let code = CUresult::CUDA_ERROR_INVALID_VALUE as i64;
    DriverError::Failed { call, code, reason: reason.to_owned() }
}

fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Memory of this device for this process alone.
fn properties(device: CUdevice) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
