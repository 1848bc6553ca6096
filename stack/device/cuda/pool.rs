//! The driver's stream-ordered pool as a device's memory: `backend:cudaMallocAsync` as it really is.

use std::collections::BTreeMap;
use std::ffi::{c_uchar, c_void};

use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
};
use headroom_base::{DeviceFigures, Reading, Reclaim};

use super::context::CudaContext;
use super::status::{check, give_back};
use crate::allocator::{Allocation, AllocationError, Counter, Counters, NotAllocated, Settings, Situation};
use crate::device::{DeviceMemory, Holding};
use crate::driver::{Address, DriverCall, DriverError};
use crate::readers::NvmlReader;

/// A live allocation: its number and what was asked.
#[derive(Clone, Copy, Debug)]
struct Live {
    serial: u64,
    bytes: u64,
}

/// A pool of its own on one GPU, which keeps what is freed until it is emptied.
///
/// Reserved and used bytes with their peaks are the driver's own figures; what was asked for is counted here. Retries
/// and failures are counted as the bound for this pool counts them: an allocation that fails is tried once more with an
/// emptied pool.
#[derive(Debug)]
pub(super) struct CudaPool {
    context: CudaContext,
    pool: PoolHandle,
    memory_fraction: Option<f64>,
    live: BTreeMap<u64, Live>,
    /// What the driver refused to take back; it is offered again when the pool is emptied.
    refused: Vec<CUdeviceptr>,
    requested: Counter,
    /// Used and reserved bytes when the peaks were last reset. The driver sets a peak to 0 then, and no lower.
    at_reset: (u64, u64),
    num_alloc_retries: u64,
    num_ooms: u64,
    serial: u64,
    reader: Option<NvmlReader>,
}

/// The driver's handle of a pool; it goes back when this is dropped.
#[derive(Debug)]
struct PoolHandle(CUmemoryPool);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for PoolHandle {}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        // SAFETY: the pool is this value's own; where memory of it is still held, the driver waits with it.
        give_back(|| unsafe { sys::cuMemPoolDestroy(self.0) });
    }
}

impl CudaPool {
    /// A pool on `context`'s device.
    pub(super) fn new(context: CudaContext, settings: &Settings) -> Result<Self, DriverError> {
        context.bind()?;
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device() },
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0 as c_uchar; 54],
        };
        let mut pool: CUmemoryPool = std::ptr::null_mut();
        // SAFETY: both places are valid for the call.
        let answer = unsafe { sys::cuMemPoolCreate(&raw mut pool, &raw const properties) };
        check(DriverCall::Reserve, answer)?;
        let pool = PoolHandle(pool);
        // With any less, what is free goes back at every wait for the stream.
        set(&pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        let reader = NvmlReader::open(&context.gpu().uuid).ok();
        Ok(Self {
            context,
            pool,
            memory_fraction: settings.memory_fraction,
            live: BTreeMap::new(),
            refused: Vec::new(),
            requested: Counter::default(),
            at_reset: (0, 0),
            num_alloc_retries: 0,
            num_ooms: 0,
            serial: 0,
            reader,
        })
    }

    fn get(&self, attribute: CUmemPool_attribute) -> Result<u64, DriverError> {
        let mut value = 0_u64;
        let place: *mut c_void = (&raw mut value).cast();
        // SAFETY: the attributes that are asked here are 64 bits wide, as the place is.
        check(DriverCall::Memory, unsafe { sys::cuMemPoolGetAttribute(self.pool.0, attribute, place) })?;
        Ok(value)
    }

    /// A figure and its peak, which the driver counts from 0 again when it is reset and not from what was held then.
    fn counter(
        &self,
        current: CUmemPool_attribute,
        high: CUmemPool_attribute,
        at_reset: u64,
    ) -> Result<Counter, DriverError> {
        let current = self.get(current)?;
        Ok(Counter { current, peak: self.get(high)?.max(current).max(at_reset) })
    }

    fn used(&self) -> Result<Counter, DriverError> {
        use CUmemPool_attribute::{CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH};
        self.counter(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH, self.at_reset.0)
    }

    fn reserved(&self) -> Result<Counter, DriverError> {
        use CUmemPool_attribute::{CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH};
        self.counter(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, self.at_reset.1)
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.memory_fraction.map(|fraction| (fraction * self.context.gpu().total_bytes as f64) as u64)
    }

    fn situation(&self) -> Situation {
        let memory = self.context.memory().ok();
        Situation {
            free: memory.map(|info| info.free_bytes).into(),
            total: memory.map(|info| info.total_bytes).into(),
            allocated_bytes: self.used().map_or(0, |used| used.current),
            reserved_bytes: self.reserved().map_or(0, |reserved| reserved.current),
            limit_bytes: self.limit_bytes(),
        }
    }

    fn failure(&mut self, requested_bytes: u64, error: DriverError) -> AllocationError {
        let situation = self.situation();
        if error.is_out_of_memory() {
            self.num_ooms += 1;
            return AllocationError::OutOfMemory { requested_bytes, situation };
        }
        AllocationError::Driver { requested_bytes, error: Box::new(error), situation }
    }

    fn take(&self, bytes: u64) -> Result<CUdeviceptr, DriverError> {
        self.context.bind()?;
        let mut address: CUdeviceptr = 0;
        let stream = self.context.stream();
        // SAFETY: the place is valid for writing; pool and stream are of the same device and live.
        let answer =
            unsafe { sys::cuMemAllocFromPoolAsync(&raw mut address, bytes.max(1) as usize, self.pool.0, stream) };
        check(DriverCall::Allocate, answer).map_err(|error| self.context.with_figures(error, bytes))?;
        Ok(address)
    }

    /// Gives memory back in the order of the stream.
    fn give(&mut self, address: CUdeviceptr) {
        let freed = self.context.bind().and_then(|()| {
            // SAFETY: the address is an allocation of this pool that nobody can name any more; what uses it is on the same
            // stream, before this.
            check(DriverCall::Free, unsafe { sys::cuMemFreeAsync(address, self.context.stream()) })
        });
        if let Err(error) = freed {
            tracing::warn!(%error, address, "memory of the pool was not taken back yet");
            self.refused.push(address);
        }
    }

    fn trim(&mut self) -> Result<(), DriverError> {
        for address in std::mem::take(&mut self.refused) {
            self.give(address);
        }
        self.context.synchronize()?;
        // SAFETY: the pool lives.
        check(DriverCall::Release, unsafe { sys::cuMemPoolTrimTo(self.pool.0, 0) })
    }
}

fn set(pool: &PoolHandle, attribute: CUmemPool_attribute, value: u64) -> Result<(), DriverError> {
    let mut value = value;
    let place: *mut c_void = (&raw mut value).cast();
    // SAFETY: the pool lives, and the attributes that are set here are 64 bits wide, as the value is.
    check(DriverCall::Memory, unsafe { sys::cuMemPoolSetAttribute(pool.0, attribute, place) })
}

impl DeviceMemory for CudaPool {
    fn figures(&mut self) -> Result<DeviceFigures, DriverError> {
        let memory = self.context.memory()?;
        Ok(DeviceFigures {
            total_bytes: memory.total_bytes,
            driver_free_bytes: memory.free_bytes,
            allocated_bytes: self.used()?.current,
            reserved_bytes: self.reserved()?.current,
            inactive_split_bytes: 0,
            reclaim: Reclaim::Pool,
        })
    }

    fn counters(&mut self) -> Result<Counters, DriverError> {
        self.context.bind()?;
        let used = self.used()?;
        Ok(Counters {
            requested: self.requested,
            allocated: used,
            active: used,
            reserved: self.reserved()?,
            num_alloc_retries: self.num_alloc_retries,
            num_ooms: self.num_ooms,
            ..Counters::default()
        })
    }

    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        if let Some(limit) = self.limit_bytes()
            && self.requested.current.saturating_add(requested_bytes) > limit
        {
            self.num_ooms += 1;
            return Err(AllocationError::OutOfMemory { requested_bytes, situation: self.situation() });
        }
        let taken = match self.take(requested_bytes) {
            Err(error) if error.is_out_of_memory() => {
                self.num_alloc_retries += 1;
                self.trim().and_then(|()| self.take(requested_bytes))
            }
            other => other,
        };
        let address = taken.map_err(|error| self.failure(requested_bytes, error))?;
        self.serial += 1;
        self.live.insert(address, Live { serial: self.serial, bytes: requested_bytes });
        self.requested.add(requested_bytes);
        Ok(Holding::Allocated(Allocation::outside(Address(address), requested_bytes, self.serial)))
    }

    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated> {
        let allocation = match holding {
            Holding::Allocated(allocation) => allocation,
            Holding::Remote { id, bytes } => return Err(NotAllocated { address: Address(id), bytes }),
        };
        let (address, bytes) = (allocation.address(), allocation.bytes());
        if self.live.get(&address.0).is_none_or(|live| live.serial != allocation.serial()) {
            return Err(NotAllocated { address, bytes });
        }
        if let Some(live) = self.live.remove(&address.0) {
            self.requested.subtract(live.bytes);
        }
        self.give(address.0);
        Ok(())
    }

    fn empty_cache(&mut self) -> Result<(), AllocationError> {
        self.trim().map_err(|error| AllocationError::Driver {
            requested_bytes: 0,
            error: Box::new(error),
            situation: self.situation(),
        })
    }

    fn reset_peaks(&mut self) -> Result<(), DriverError> {
        self.context.bind()?;
        // The driver takes no other value than 0 for these.
        set(&self.pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        set(&self.pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)?;
        self.at_reset = (
            self.get(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            self.get(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
        );
        self.requested.reset_peak();
        Ok(())
    }

    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        super::driver::process_bytes(self.reader.as_ref())
    }

    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        Ok(Reading::Unknown)
    }
}

impl Drop for CudaPool {
    fn drop(&mut self) {
        for address in std::mem::take(&mut self.live).into_keys() {
            self.give(address);
        }
        // What the driver refused before is offered once more; the pool itself goes right after.
        let _ = self.trim();
    }
}
