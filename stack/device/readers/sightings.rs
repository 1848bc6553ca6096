//! Where a reader was seen to agree with the allocator on hardware, and whether this machine is such a place.

/// What a person saw on hardware: a reader and the allocator agreeing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The system, as Rust names it.
    pub system: &'static str,
    /// The processor's architecture, as Rust names it.
    pub architecture: &'static str,
    /// The card.
    pub gpu: &'static str,
    /// The driver's version. Its major number is compared: within one the interface and its books stay.
    pub driver: &'static str,
    /// What was compared, and what came out.
    pub seen: &'static str,
}

/// Where NVIDIA's management library was seen to agree with the allocator. A reader is verified in a place such as stands
/// here, and in no other.
pub const NVML_SIGHTINGS: &[Sighting] = &[Sighting {
    system: "linux",
    architecture: "x86_64",
    gpu: "NVIDIA H200",
    driver: "580.159.04",
    seen: "context + segments + libraries = the own process's bytes, to the KiB, over whole pipelines",
}];

/// Where a reader reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadingPlace {
    pub(super) system: &'static str,
    pub(super) architecture: &'static str,
    /// The driver's version, where it tells.
    pub(super) driver: Option<String>,
    /// Linux inside Windows, whose driver keeps the books under another memory manager.
    pub(super) is_wsl: bool,
    /// A part of a divided card, or the card it is a part of.
    pub(super) is_divided: bool,
}

impl ReadingPlace {
    /// This machine under this driver.
    pub(super) fn here(driver: Option<String>, is_divided: bool) -> Self {
        let kernel = ["/proc/sys/kernel/osrelease", "/proc/version"].map(|path| std::fs::read_to_string(path).ok());
        let is_wsl = kernel.iter().flatten().any(|text| names_wsl(text));
        let (system, architecture) = (std::env::consts::OS, std::env::consts::ARCH);
        Self { system, architecture, driver, is_wsl, is_divided }
    }

    /// Whether somebody saw the reader agree in such a place.
    pub(super) fn is_among(&self, sightings: &[Sighting]) -> bool {
        let Some(own) = self.driver.as_deref().and_then(major) else { return false };
        let same = |sighting: &Sighting| {
            sighting.system == self.system
                && sighting.architecture == self.architecture
                && major(sighting.driver) == Some(own)
        };
        !self.is_wsl && !self.is_divided && sightings.iter().any(same)
    }
}

/// The first number of a driver's version.
fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Whether a kernel says that it is the one inside Windows.
fn names_wsl(kernel: &str) -> bool {
    kernel.to_ascii_lowercase().contains("microsoft")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> ReadingPlace {
        let driver = Some("580.159.04".to_owned());
        ReadingPlace { system: "linux", architecture: "x86_64", driver, is_wsl: false, is_divided: false }
    }

    #[test]
    fn only_the_system_architecture_and_major_driver_that_were_seen_are_verified() {
        let driver = |text: &str| ReadingPlace { driver: Some(text.to_owned()), ..seen() };
        for (place, verified) in [
            (seen(), true),
            (driver("580.65.06"), true),
            (driver("570.133.20"), false),
            (driver("581.0"), false),
            (driver("5800.1"), false),
            (driver("unknown"), false),
            (driver(""), false),
            (ReadingPlace { driver: None, ..seen() }, false),
            (ReadingPlace { system: "windows", ..seen() }, false),
            (ReadingPlace { architecture: "aarch64", ..seen() }, false),
            (ReadingPlace { is_wsl: true, ..seen() }, false),
            (ReadingPlace { is_divided: true, ..seen() }, false),
        ] {
            assert_eq!(place.is_among(NVML_SIGHTINGS), verified, "{place:?}");
        }
        assert!(!seen().is_among(&[]));
    }

    #[test]
    fn the_kernel_inside_windows_is_told_from_others() {
        for kernel in
            ["5.15.167.4-microsoft-standard-WSL2", "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)"]
        {
            assert!(names_wsl(kernel), "{kernel}");
        }
        for kernel in ["6.8.0-60-generic", "Linux version 6.6.0 (builder@host) (gcc 13) #1 SMP", ""] {
            assert!(!names_wsl(kernel), "{kernel}");
        }
    }
}
