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
    names.extend(gone(built, standing));
    names.sort();
    names
}

/// The standing files of backends and allocators for which nothing is built any more, by name. A file of another name
/// is nobody's business here.
pub fn gone(built: &[Shipped], standing: &[(String, String)]) -> Vec<String> {
    let is_built = |name: &str| built.iter().any(|file| Shipped::file_name(file.backend, file.allocator) == name);
    let names = standing.iter().map(|(name, _)| name);
    names.filter(|name| is_file_name(name) && !is_built(name)).cloned().collect()
}

/// Whether shipped data may stand in a file of this name.
pub fn is_file_name(name: &str) -> bool {
    let allocators = |backend| AllocatorKind::ALL.into_iter().map(move |allocator| (backend, allocator));
    Backend::ALL.into_iter().flat_map(allocators).any(|(backend, of)| Shipped::file_name(backend, of) == name)
}

/// Every pair that has a file, whether or not anything is known for it: the program compiles all of them in.
pub const ALWAYS: [(Backend, AllocatorKind); 3] = [
    (Backend::Cuda, AllocatorKind::Native),
    (Backend::Cuda, AllocatorKind::ExpandableSegments),
    (Backend::Cuda, AllocatorKind::CudaMallocAsync),
];
