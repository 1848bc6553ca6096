//! Allocator settings with the names people know them by and the line that sets them.

use headroom_base::AllocatorKind;
use headroom_device::Settings;
use headroom_device::allocator::{SettingsError, VARIABLES};

/// The environment variable that lines name: the first that is read.
const VARIABLE: &str = VARIABLES[0];

/// What else people should know of [`NamedSetting::environment`].
pub const OLDER_VARIABLE_NOTE: &str = "PyTorch before 2.9 reads PYTORCH_CUDA_ALLOC_CONF instead of PYTORCH_ALLOC_CONF.";

/// The settings that a replay tries, as PyTorch's documentation writes them. Garbage collection acts only under a
/// limit, so it comes with one: the whole device.
const TRIED: [&str; 6] = [
    "backend:native",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:1.0",
    "backend:cudaMallocAsync",
];

/// A setting of the allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedSetting {
    /// What people call it.
    pub name: String,
    /// Its value of the environment variable.
    pub text: String,
    /// The setting.
    pub settings: Settings,
}

impl NamedSetting {
    /// The default setting of a kind of allocator, called as the kind is.
    pub fn of_kind(kind: AllocatorKind) -> Self {
        let settings = Settings::of_kind(kind);
        let text = if kind == AllocatorKind::Native { "backend:native".to_owned() } else { settings.to_string() };
        Self { name: kind.name().to_owned(), text, settings }
    }

    /// A setting as somebody wrote it; `origin` is what errors call the place it was written at.
    ///
    /// # Errors
    /// For a key that PyTorch does not know or a value that it refuses.
    pub fn parse(origin: &str, text: &str) -> Result<Self, SettingsError> {
        let settings = Settings::parse(origin, text)?;
        if settings == Settings::of_kind(settings.kind) {
            return Ok(Self::of_kind(settings.kind));
        }
        let name = settings.to_string();
        let name = name.strip_suffix(",per_process_memory_fraction:1").unwrap_or(&name).to_owned();
        Ok(Self { name, text: text.to_owned(), settings })
    }

    /// The settings that are tried whatever is replayed.
    pub fn tried() -> Vec<Self> {
        TRIED.iter().filter_map(|text| Self::parse(VARIABLE, text).ok()).collect()
    }

    /// The line that sets it.
    pub fn environment(&self) -> String {
        format!("{VARIABLE}={}", self.text)
    }

    /// Whether what is computed for it is an upper bound and not what it will be.
    pub fn is_bound(&self) -> bool {
        self.settings.kind == AllocatorKind::CudaMallocAsync
    }

    /// Whether it does something only where the process's memory is limited.
    pub const fn needs_a_limit(&self) -> bool {
        self.settings.garbage_collection_threshold.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tried_setting_is_one_and_its_line_sets_it() {
        let tried = NamedSetting::tried();
        assert_eq!(tried.len(), TRIED.len());
        let names: Vec<_> = tried.iter().map(|setting| setting.name.as_str()).collect();
        let expected = [
            "native",
            "expandable_segments",
            "max_split_size_mb:128",
            "roundup_power2_divisions:4",
            "garbage_collection_threshold:0.6",
            "cuda_malloc_async",
        ];
        assert_eq!(names, expected);
        for setting in tried {
            let environment = setting.environment();
            let (variable, text) = environment.split_once('=').unwrap();
            let read = Settings::from_environment(|name| (name == variable).then(|| text.to_owned())).unwrap();
            assert_eq!(read, setting.settings, "{environment}");
        }
    }

    #[test]
    fn a_default_setting_is_called_as_its_kind() {
        let name = |text| NamedSetting::parse("--setting", text).unwrap().name;
        assert_eq!(name("expandable_segments:True"), "expandable_segments");
        assert_eq!(name(""), "native");
        assert_eq!(name("max_split_size_mb:64"), "max_split_size_mb:64");
        let error = NamedSetting::parse("--setting", "max_splt_size_mb:64").unwrap_err().to_string();
        assert!(error.contains("--setting") && error.contains("max_splt_size_mb"), "{error}");
    }
}
