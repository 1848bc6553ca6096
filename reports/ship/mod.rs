//! Builds the shipped coefficients from reports of any number of machines, the same bytes whatever their order.

mod build;
mod changes;
mod machines;

pub use build::{Built, LeftOut, NotShipped, Rules, build};
pub use changes::{Change, ChangeKind, LineId, Refusal, changes, refusals};
pub use machines::{Machine, Outlier, outliers};

use headroom_base::{AllocatorKind, Backend};
use headroom_calibration::Shipped;

/// The files that differ from what stands in the repository, by name; none when all of it is up to date.
///
/// A line ending that a checkout changed is not a difference.
pub fn outdated(built: &[Shipped], standing: &[(String, String)]) -> Vec<String> {
    let plain = |text: &str| text.replace("\r\n", "\n");
    let mut names: Vec<String> = built
        .iter()
        .filter(|file| {
            let name = Shipped::file_name(file.backend, file.allocator);
            let found = standing.iter().find(|(standing, _)| *standing == name);
            found.is_none_or(|(_, text)| plain(text) != file.to_json())
        })
        .map(|file| Shipped::file_name(file.backend, file.allocator))
        .collect();
    let is_built = |name: &str| built.iter().any(|file| Shipped::file_name(file.backend, file.allocator) == name);
    names.extend(standing.iter().map(|(name, _)| name.clone()).filter(|name| !is_built(name)));
    names.sort();
    names
}

/// Every pair that has a file, whether or not anything is known for it: the program compiles all of them in.
pub const ALWAYS: [(Backend, AllocatorKind); 3] = [
    (Backend::Cuda, AllocatorKind::Native),
    (Backend::Cuda, AllocatorKind::ExpandableSegments),
    (Backend::Cuda, AllocatorKind::CudaMallocAsync),
];
