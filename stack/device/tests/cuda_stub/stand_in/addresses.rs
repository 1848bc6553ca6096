//! Where memory is placed: below everything before it, as the simulated driver does, so that both can be compared.

/// The top of a 47-bit address space.
const TOP: u64 = 1 << 47;

pub struct Addresses {
    end: u64,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { end: TOP }
    }
}

impl Addresses {
    /// The next `bytes`, on a page's boundary.
    pub fn place(&mut self, bytes: u64, page: u64) -> u64 {
        self.end = (self.end - bytes) / page * page;
        self.end
    }
}
