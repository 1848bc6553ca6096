//! Finds the figures in a message, whatever version of PyTorch wrote it and however it was pasted.
//!
//! Four wordings exist for CUDA, HIP and XPU: `N cached` (up to 1.3), `N reserved in total by PyTorch` (1.4 to
//! 2.0), `GPU 0 has a total capacity of N of which M is free` (2.1 on, at first spelt `capacty`), and the
//! stream-ordered pool's small table. Metal has one of its own.

use headroom_base::{Bytes, Reading};

use super::explain::missing_bytes;
use super::{Api, Hardest, OtherProcess, OutOfMemory};

/// Above this a figure is an all-ones word or a difference gone below 0, not a size.
const LARGEST_BYTES: u64 = 1 << 50;

/// Why a text is not a message that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseOomError {
    /// There is no such message in it.
    #[error(
        "the text holds no out-of-memory message of PyTorch: paste the line with `out of memory` and `Tried to allocate`"
    )]
    NoMessage,
    /// The message does not say how much was asked for.
    #[error("the message does not say how much was asked for (`Tried to allocate …`): paste all of it")]
    NoRequest,
}

/// Reads the first message of a text that says how much was asked for. Line breaks and what stands around it do not
/// matter.
///
/// # Errors
/// When there is none, or none says how much was asked for.
pub fn parse(text: &str) -> Result<OutOfMemory, ParseOomError> {
    Ok(parse_all(text)?.0)
}

/// Reads every message of a text and chooses the one in which most is missing: what makes up for it makes up for the
/// others. Of equal ones it is the first.
///
/// # Errors
/// When there is none, or none says how much was asked for.
pub fn parse_hardest(text: &str) -> Result<Hardest, ParseOomError> {
    let (first, others) = parse_all(text)?;
    let mut hardest =
        Hardest { number: 1, count: 1 + others.len(), are_alike: others.iter().all(|oom| *oom == first), oom: first };
    for (index, oom) in others.into_iter().enumerate() {
        if missing_bytes(&oom) > missing_bytes(&hardest.oom) {
            (hardest.number, hardest.oom) = (index + 2, oom);
        }
    }
    Ok(hardest)
}

/// The first message that can be read and those after it. What a log says of one in passing is none.
fn parse_all(text: &str) -> Result<(OutOfMemory, Vec<OutOfMemory>), ParseOomError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let flat = words.join(" ");
    // People paste the second half of the line too.
    let half = || flat.find("Tried to allocate").map(|at| (Api::Cuda, at));
    let (mut api, mut start) = first_message(&flat).or_else(half).ok_or(ParseOomError::NoMessage)?;
    let mut found = Vec::new();
    loop {
        let message = one_message(&flat[start..]);
        found.extend(parse_one(api, message));
        let next = start + message.len();
        match first_message(&flat[next..]) {
            Some((next_api, at)) => (api, start) = (next_api, next + at),
            None => break,
        }
    }
    let mut found = found.into_iter();
    Ok((found.next().ok_or(ParseOomError::NoRequest)?, found.collect()))
}

/// Reads one message; none where it does not say how much was asked for.
fn parse_one(api: Api, text: &str) -> Option<OutOfMemory> {
    let mut figures = Figures { text, nonsense: Vec::new(), decimal_units: false };
    let stream_ordered = figures.text.contains("Currently allocated");
    let requested = figures.after("Tried to allocate").or_else(|| figures.after("Requested :"));
    let requested_bytes = requested.and_then(Reading::known)?;
    let others = figures.others();
    let first = |figures: &mut Figures<'_>, ways: &[Way]| {
        ways.iter().find_map(|way| figures.find(*way)).unwrap_or(Reading::Unknown)
    };
    let total_bytes = first(
        &mut figures,
        &[
            Way::After("total capacity of"),
            Way::After("total capacty of"),
            Way::Before("total capacity"),
            Way::After("Device limit :"),
        ],
    );
    let free_bytes =
        first(&mut figures, &[Way::Before("is free"), Way::Before("free;"), Way::After("Free (according to CUDA):")]);
    let limit_bytes = first(
        &mut figures,
        &[Way::Before("allowed"), Way::After("max allowed:"), Way::After("(set by user-supplied memory fraction) :")],
    );
    let allocated_bytes = first(
        &mut figures,
        &[
            Way::Before("is allocated by PyTorch"),
            Way::Before("already allocated"),
            Way::After("Currently allocated :"),
            Way::After("MPS allocated:"),
        ],
    );
    // `cached` was what is left of the reserve; later wordings say `reserved in total`.
    let unallocated =
        first(&mut figures, &[Way::Before("is reserved by PyTorch but unallocated"), Way::Before("cached")]);
    let reserved = first(&mut figures, &[Way::Before("reserved in total by PyTorch")]);
    let sum = allocated_bytes.known().zip(unallocated.known()).map(|(allocated, free)| allocated + free);
    Some(OutOfMemory {
        api,
        stream_ordered,
        device: device(figures.text),
        requested_bytes,
        total_bytes,
        free_bytes,
        limit_bytes,
        process_bytes: first(&mut figures, &[Way::After("this process has")]),
        others,
        allocated_bytes,
        reserved_bytes: Reading::from(reserved.known().or(sum)),
        private_pools_bytes: first(&mut figures, &[Way::Before("allocated in private pools")]),
        nonsense: figures.nonsense,
        decimal_units: figures.decimal_units,
    })
}

/// Where the first message begins, and whose it is.
fn first_message(text: &str) -> Option<(Api, usize)> {
    let openings = [
        ("CUDA out of memory", Api::Cuda),
        ("HIP out of memory", Api::Hip),
        ("XPU out of memory", Api::Xpu),
        ("MPS backend out of memory", Api::Mps),
        ("Allocation on device", Api::Cuda),
    ];
    let whole = openings.into_iter().filter_map(|(opening, api)| text.find(opening).map(|at| (api, at)));
    whole.min_by_key(|(_, at)| *at)
}

/// The text up to where a second message begins.
fn one_message(text: &str) -> &str {
    let rest = text.get(1..).unwrap_or_default();
    let end = first_message(rest).map_or(text.len(), |(_, at)| at + 1);
    &text[..end]
}

fn device(text: &str) -> Option<u32> {
    let after = |opening: &str| text.split_once(opening).map(|(_, rest)| rest);
    let rest = after("GPU ").or_else(|| after("device "))?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Where a figure stands.
#[derive(Clone, Copy)]
enum Way {
    /// Right after these words.
    After(&'static str),
    /// Right before these words.
    Before(&'static str),
}

struct Figures<'a> {
    text: &'a str,
    nonsense: Vec<String>,
    decimal_units: bool,
}

impl<'a> Figures<'a> {
    fn find(&mut self, way: Way) -> Option<Reading> {
        match way {
            Way::After(words) => self.after(words),
            Way::Before(words) => self.before(words),
        }
    }

    fn after(&mut self, words: &str) -> Option<Reading> {
        let rest = self.text.split_once(words)?.1;
        self.figure(rest)
    }

    fn before(&mut self, words: &str) -> Option<Reading> {
        let (before, _) = self.text.split_once(words)?;
        let mut parts = before.trim_end().rsplitn(3, ' ');
        let (unit, number) = (parts.next()?, parts.next()?);
        self.figure(&format!("{} {unit}", number.trim_start_matches('(')))
    }

    /// A number and a unit at the start of a text; none where there is no such thing.
    fn figure(&mut self, text: &str) -> Option<Reading> {
        let mut words = text.trim_start().splitn(3, ' ');
        let (number, unit) = (words.next()?, words.next().unwrap_or_default());
        let unit: String = unit.chars().take_while(char::is_ascii_alphabetic).collect();
        let binary = match unit.as_str() {
            "bytes" | "B" => "B",
            "KiB" | "MiB" | "GiB" => unit.as_str(),
            "KB" => "KiB",
            "MB" => "MiB",
            "GB" => "GiB",
            _ => return None,
        };
        self.decimal_units |= matches!(unit.as_str(), "KB" | "MB" | "GB");
        // A number that is too large for 64 bits is nonsense too, not the end of the reading.
        let bytes = match format!("{number} {binary}").parse::<Bytes>() {
            Ok(Bytes(bytes)) => bytes,
            Err(headroom_base::bytes::ParseBytesError::TooLarge { .. }) => u64::MAX,
            Err(_) => return None,
        };
        if bytes <= LARGEST_BYTES {
            return Some(Reading::Bytes(bytes));
        }
        let printed = format!("{number} {unit}");
        if !self.nonsense.contains(&printed) {
            self.nonsense.push(printed);
        }
        Some(Reading::Unknown)
    }

    /// `Process 123 has 1.00 GiB memory in use`, as often as it stands there.
    fn others(&mut self) -> Vec<OtherProcess> {
        let text: &'a str = self.text;
        let mut others = Vec::new();
        for (at, opening) in text.match_indices("Process ") {
            let rest = &text[at + opening.len()..];
            let Some((pid, rest)) = rest.split_once(" has ") else { continue };
            let (Ok(pid), Some(bytes)) = (pid.parse(), self.figure(rest)) else { continue };
            others.push(OtherProcess { pid, bytes });
        }
        others
    }
}
