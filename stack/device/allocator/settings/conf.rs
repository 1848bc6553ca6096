//! The syntax of the environment variables: `key:value,key:[size:steps,...]`.

use headroom_base::{AllocatorKind, MIB};

use super::{Problem, Settings, SettingsError};
use crate::allocator::sizes::{DIVISION_RANGES, Divisions, SMALLEST_OWN_SEGMENT_BYTES};

/// Keys that change what this allocator does.
const MODELLED: [&str; 8] = [
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    LARGE_SEGMENT,
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
];

/// What the value of a key without effect must look like.
#[derive(Clone, Copy)]
enum Form {
    Flag,
    WholeNumber,
    PowerOfTwo,
}

/// Keys that PyTorch 2.11 knows and that change nothing here, with the values it takes and the reason.
const UNMODELLED: [(&str, Form, &str); 8] = [
    ("graph_capture_record_stream_reuse", Form::Flag, "nothing is captured into a graph here"),
    ("pinned_num_register_threads", Form::PowerOfTwo, "it concerns host memory"),
    ("pinned_reserve_segment_size_mb", Form::WholeNumber, "it concerns host memory"),
    ("pinned_use_background_threads", Form::Flag, "it concerns host memory"),
    ("pinned_use_cuda_host_register", Form::Flag, "it concerns host memory"),
    ("pinned_use_hip_host_register", Form::Flag, "it concerns host memory"),
    ("release_lock_on_cudamalloc", Form::Flag, "it concerns waiting threads, not memory"),
    ("release_lock_on_hipmalloc", Form::Flag, "it concerns waiting threads, not memory"),
];

/// The key of the size of large segments, and of the pages of expandable ones.
const LARGE_SEGMENT: &str = "large_segment_size_mb";

/// `max_split_size_mb` and `max_non_split_rounding_mb` are refused below the size of a large segment.
const LEAST_SPLIT_MIB: u64 = 20;

pub(super) fn parse(variable: &str, text: &str) -> Result<Settings, SettingsError> {
    let mut settings = Settings::default();
    let mut expandable = false;
    let mut pooled = false;
    let mut large_segment = "";
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    for (key, value) in pairs(&compact) {
        let refuse = |problem| SettingsError {
            variable: variable.to_owned(),
            key: key.to_owned(),
            value: value.unwrap_or_default().to_owned(),
            problem,
        };
        let unmodelled = UNMODELLED.iter().find(|(known, ..)| *known == key);
        if unmodelled.is_none() && !MODELLED.contains(&key) {
            let mut known: Vec<_> = MODELLED.into_iter().chain(UNMODELLED.iter().map(|(key, ..)| *key)).collect();
            known.sort_unstable();
            return Err(refuse(Problem::UnknownKey { known }));
        }
        let value = value.filter(|value| !value.is_empty()).ok_or_else(|| refuse(Problem::NoValue))?;
        if let Some((_, form, reason)) = unmodelled {
            check(*form, value).map_err(refuse)?;
            settings.notes.push(format!("{key} has no effect here: {reason}"));
            continue;
        }
        let outcome = match key {
            "backend" => backend(value).map(|is_pool| pooled = is_pool),
            "expandable_segments" => boolean(value).map(|on| expandable = on),
            _ => set(&mut settings, key, value),
        };
        outcome.map_err(refuse)?;
        if key == LARGE_SEGMENT {
            large_segment = value;
        }
    }
    settings.kind = match (pooled, expandable) {
        (true, _) => AllocatorKind::CudaMallocAsync,
        (false, true) => AllocatorKind::ExpandableSegments,
        (false, false) => AllocatorKind::Native,
    };
    if pooled
        && (expandable || settings != (Settings { notes: settings.notes.clone(), ..Settings::of_kind(settings.kind) }))
    {
        settings.notes.push("backend:cudaMallocAsync ignores the settings of the native allocator".to_owned());
        settings = Settings { notes: settings.notes, ..Settings::of_kind(AllocatorKind::CudaMallocAsync) };
    }
    // Only virtual memory comes in pages of that size, and the driver makes none of an odd one.
    if settings.kind == AllocatorKind::ExpandableSegments && large_segment.parse().is_ok_and(|mib: u64| mib % 2 == 1) {
        let (variable, key, value) = (variable.to_owned(), LARGE_SEGMENT.to_owned(), large_segment.to_owned());
        return Err(SettingsError { variable, key, value, problem: Problem::OddPages });
    }
    Ok(settings)
}

fn check(form: Form, value: &str) -> Result<(), Problem> {
    match form {
        Form::Flag => boolean(value).map(drop),
        Form::WholeNumber => mebibytes(value, 1).map(drop),
        Form::PowerOfTwo => power_of_two(value).filter(|&number| number > 0).map(drop).ok_or(Problem::NotAPowerOfTwo),
    }
}

fn set(settings: &mut Settings, key: &str, value: &str) -> Result<(), Problem> {
    let beyond_small = SMALLEST_OWN_SEGMENT_BYTES / MIB + 1;
    match key {
        "max_split_size_mb" => settings.most_split_bytes = Some(mebibytes(value, LEAST_SPLIT_MIB)?),
        "max_non_split_rounding_mb" => settings.most_unsplit_excess_bytes = mebibytes(value, LEAST_SPLIT_MIB)?,
        // A large segment must hold the largest request it is used for.
        LARGE_SEGMENT => settings.large_segment_bytes = mebibytes(value, beyond_small)?,
        "garbage_collection_threshold" => settings.garbage_collection_threshold = Some(share(value, false)?),
        "per_process_memory_fraction" => settings.memory_fraction = Some(share(value, true)?),
        _ => settings.divisions = Some(divisions(value)?),
    }
    Ok(())
}

/// Splits at commas outside brackets, and each part at its first colon.
fn pairs(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut depth = 0_i32;
    let parts = text.split(move |c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth <= 0
    });
    parts.filter(|part| !part.is_empty()).map(|part| match part.split_once(':') {
        Some((key, value)) => (key, Some(value)),
        None => (part, None),
    })
}

fn backend(value: &str) -> Result<bool, Problem> {
    match value {
        "native" => Ok(false),
        "cudaMallocAsync" | "hipMallocAsync" => Ok(true),
        _ => Err(Problem::NotOneOf { allowed: vec!["native", "cudaMallocAsync", "hipMallocAsync"] }),
    }
}

fn boolean(value: &str) -> Result<bool, Problem> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err(Problem::NotOneOf { allowed: vec!["True", "False"] }),
    }
}

fn mebibytes(value: &str, least: u64) -> Result<u64, Problem> {
    let number: Option<u64> = value.parse().ok();
    // More than fits is as good as unlimited, and is what PyTorch makes of it.
    number.filter(|&mib| mib >= least).map(|mib| mib.saturating_mul(MIB)).ok_or(Problem::NotAWholeNumber { least })
}

fn share(value: &str, ends_included: bool) -> Result<f64, Problem> {
    let number: Option<f64> = value.parse().ok();
    let inside = |share: &f64| if ends_included { (0.0..=1.0).contains(share) } else { *share > 0.0 && *share < 1.0 };
    number.filter(inside).ok_or(Problem::NotAShare { ends_included })
}

/// One number for every size, or a list of `size:steps` with sizes in MiB, where `>` stands for all sizes above the last.
fn divisions(value: &str) -> Result<Divisions, Problem> {
    let Some(list) = value.strip_prefix('[') else {
        return Ok([power_of_two(value).filter(|&steps| steps > 0).ok_or(Problem::NotAPowerOfTwo)?; DIVISION_RANGES]);
    };
    let list = list.strip_suffix(']').ok_or(Problem::Syntax)?;
    let mut divisions = [0; DIVISION_RANGES];
    let mut last = None;
    for entry in list.split(',') {
        let (size, steps) = entry.split_once(':').ok_or(Problem::Syntax)?;
        let steps = power_of_two(steps).ok_or(Problem::NotAPowerOfTwo)?;
        if size == ">" {
            let after = last.map_or(1, |last| last + 1);
            divisions[after..].fill(steps);
            continue;
        }
        let mib = power_of_two(size).filter(|&mib| mib > 0).ok_or(Problem::NotAPowerOfTwo)?;
        let range = (mib.ilog2() as usize).min(DIVISION_RANGES - 1);
        if last.is_none() {
            divisions[..range].fill(steps);
        }
        divisions[range] = steps;
        last = Some(range);
    }
    Ok(divisions)
}

/// A power of two, or 0.
fn power_of_two(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&number: &u64| number == 0 || number.is_power_of_two())
}

pub(super) fn divisions_text(divisions: &Divisions) -> String {
    if divisions[0] > 0 && divisions.iter().all(|steps| *steps == divisions[0]) {
        return divisions[0].to_string();
    }
    let entries: Vec<_> =
        (0..DIVISION_RANGES).map(|range| format!("{}:{}", 1_u64 << range, divisions[range])).collect();
    format!("[{}]", entries.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Settings {
        parse("PYTORCH_ALLOC_CONF", text).unwrap()
    }

    #[test]
    fn the_first_variable_that_is_set_wins_even_when_it_is_empty() {
        let both = |name: &str| match name {
            "PYTORCH_ALLOC_CONF" => Some(String::new()),
            "PYTORCH_CUDA_ALLOC_CONF" => Some("expandable_segments:True".to_owned()),
            _ => None,
        };
        assert_eq!(Settings::from_environment(both).unwrap().kind, AllocatorKind::Native);
        let second = |name: &str| (name != "PYTORCH_ALLOC_CONF").then(|| both("PYTORCH_CUDA_ALLOC_CONF")).flatten();
        assert_eq!(Settings::from_environment(second).unwrap().kind, AllocatorKind::ExpandableSegments);
        assert_eq!(Settings::from_environment(|_| None).unwrap(), Settings::default());
    }

    #[test]
    fn every_modelled_key_sets_what_it_says() {
        let settings = parsed(
            "max_split_size_mb:128, garbage_collection_threshold:0.6,max_non_split_rounding_mb:30,large_segment_size_mb:40,per_process_memory_fraction:0.5",
        );
        assert_eq!(settings.most_split_bytes, Some(128 * MIB));
        assert_eq!(settings.garbage_collection_threshold, Some(0.6));
        assert_eq!(settings.most_unsplit_excess_bytes, 30 * MIB);
        assert_eq!(settings.large_segment_bytes, 40 * MIB);
        assert_eq!(settings.memory_fraction, Some(0.5));
        assert!(settings.notes.is_empty());
    }

    #[test]
    fn the_list_of_divisions_sets_ranges_below_between_and_above() {
        let divisions = parsed("roundup_power2_divisions:[256:1,512:2,>:4]").divisions.unwrap();
        assert_eq!(divisions[..9], [1; 9]);
        assert_eq!(divisions[9], 2);
        assert_eq!(divisions[10..], [4; 6]);
    }

    #[test]
    fn settings_print_as_the_text_that_gives_them() {
        for text in [
            "",
            "expandable_segments:True",
            "backend:cudaMallocAsync",
            "max_split_size_mb:64,roundup_power2_divisions:8,garbage_collection_threshold:0.8",
            "max_non_split_rounding_mb:32,roundup_power2_divisions:[64:8,256:0,1024:4,>:1],large_segment_size_mb:12",
        ] {
            let settings = parsed(text);
            assert_eq!(parsed(&settings.to_string()), settings, "{text}");
        }
        assert_eq!(parsed("roundup_power2_divisions:[1:8,>:8]").to_string(), "roundup_power2_divisions:8");
    }

    #[test]
    fn known_keys_without_effect_leave_a_note() {
        let settings = parsed("pinned_use_background_threads:True,backend:native");
        assert_eq!(settings.notes.len(), 1);
        let ignored = parsed("backend:cudaMallocAsync,max_split_size_mb:64");
        assert_eq!(ignored.most_split_bytes, None);
        assert_eq!(ignored.notes.len(), 1);
    }

    #[test]
    fn segments_of_an_odd_size_are_refused_where_they_are_pages_of_virtual_memory_alone() {
        let odd = "large_segment_size_mb:21";
        assert_eq!(parsed(odd).large_segment_bytes, 21 * MIB);
        assert_eq!(parsed(&format!("{odd},expandable_segments:False")).large_segment_bytes, 21 * MIB);
        assert_eq!(parsed(&format!("backend:cudaMallocAsync,expandable_segments:True,{odd}")).notes.len(), 1);
        for even in ["22", &u64::MAX.saturating_sub(1).to_string()] {
            parsed(&format!("expandable_segments:True,{odd},large_segment_size_mb:{even}"));
        }
        let error = parse("PYTORCH_ALLOC_CONF", &format!("expandable_segments:True,{odd}")).unwrap_err().to_string();
        assert!(
            error.contains("`large_segment_size_mb` is set to `21`") && error.contains("an even number"),
            "{error}"
        );
    }

    #[test]
    fn refusals_name_variable_key_and_value() {
        for (text, key, value) in [
            ("pinned_use_background_threads:yes", "pinned_use_background_threads", "yes"),
            ("pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb", "0"),
            ("pinned_num_register_threads:3", "pinned_num_register_threads", "3"),
            ("release_lock_on_cudamalloc", "release_lock_on_cudamalloc", ""),
            ("max_split_size_md:64", "max_split_size_md", "64"),
            ("max_split_size_mb:19", "max_split_size_mb", "19"),
            ("max_split_size_mb", "max_split_size_mb", ""),
            ("garbage_collection_threshold:0", "garbage_collection_threshold", "0"),
            ("garbage_collection_threshold:1", "garbage_collection_threshold", "1"),
            ("garbage_collection_threshold:NaN", "garbage_collection_threshold", "NaN"),
            ("expandable_segments:true", "expandable_segments", "true"),
            ("backend:jemalloc", "backend", "jemalloc"),
            ("roundup_power2_divisions:3", "roundup_power2_divisions", "3"),
            ("roundup_power2_divisions:[256:3]", "roundup_power2_divisions", "[256:3]"),
            ("roundup_power2_divisions:[256:4", "roundup_power2_divisions", "[256:4"),
            ("large_segment_size_mb:10", "large_segment_size_mb", "10"),
            ("large_segment_size_mb:21,expandable_segments:True", "large_segment_size_mb", "21"),
            ("per_process_memory_fraction:1.5", "per_process_memory_fraction", "1.5"),
        ] {
            let error = parse("PYTORCH_CUDA_ALLOC_CONF", text).unwrap_err();
            assert_eq!((error.key.as_str(), error.value.as_str()), (key, value));
            assert!(error.to_string().starts_with("PYTORCH_CUDA_ALLOC_CONF"), "{error}");
        }
    }
}
