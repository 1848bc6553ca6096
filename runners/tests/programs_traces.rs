//! Programs against every allocator event that was recorded on an H200.

mod recorded;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use flate2::read::MultiGzDecoder;
use headroom_runners::programs::evidence::recorded_case;
use headroom_runners::programs::{Role, Step, program};
use serde_json::Value;

fn lines(name: &str) -> Vec<Value> {
    let Ok(file) = File::open(recorded::path(name)) else { return Vec::new() };
    BufReader::new(MultiGzDecoder::new(file))
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect()
}

/// `(allocates, size rounded to a block, serial of the allocation)`.
type Event = (bool, u64, usize);

fn recorded(line: &Value) -> Vec<Event> {
    let mut live = HashMap::new();
    let mut events = Vec::new();
    let mut serial = 0;
    for event in line["events"].as_array().unwrap() {
        let (action, address, size) =
            (event[0].as_str().unwrap(), event[1].as_u64().unwrap(), event[2].as_u64().unwrap());
        match action {
            "alloc" => {
                live.insert(address, serial);
                events.push((true, size, serial));
                serial += 1;
            }
            "free_requested" => events.push((false, size, live.remove(&address).unwrap_or(usize::MAX))),
            _ => {}
        }
    }
    events
}

fn predicted(line: &Value) -> Option<Vec<Event>> {
    let (case, execution) = recorded_case(&line.to_string(), 1).unwrap();
    let program = program(&recorded::architecture(&case).unwrap(), &case.case, &execution).ok()?;
    let mut serials = HashMap::new();
    let mut events = Vec::new();
    for step in &program.steps {
        match step {
            Step::Allocate { role: Role::Persistent, .. } => {}
            Step::Allocate { tensor, bytes, .. } => {
                serials.insert(*tensor, (serials.len(), *bytes));
                events.push((true, *bytes, serials[tensor].0));
            }
            Step::Free { tensor } => {
                let (serial, bytes) = serials[tensor];
                events.push((false, bytes, serial));
            }
        }
    }
    Some(events)
}

/// How many events two sequences have in common, in order: the longest common subsequence, found by the shortest edit.
fn common(ours: &[(bool, u64)], theirs: &[(bool, u64)]) -> usize {
    let (n, m) = (ours.len() as isize, theirs.len() as isize);
    let most = n + m;
    let mut reach = vec![0_isize; 2 * most as usize + 2];
    let at = |diagonal: isize| (diagonal + most) as usize;
    for edits in 0..=most {
        for diagonal in (-edits..=edits).step_by(2) {
            let down = diagonal == -edits || (diagonal != edits && reach[at(diagonal - 1)] < reach[at(diagonal + 1)]);
            let mut x = if down { reach[at(diagonal + 1)] } else { reach[at(diagonal - 1)] + 1 };
            while x < n && x - diagonal < m && ours[x as usize] == theirs[(x - diagonal) as usize] {
                x += 1;
            }
            reach[at(diagonal)] = x;
            if x >= n && x - diagonal >= m {
                return ((most - edits) / 2) as usize;
            }
        }
    }
    0
}

#[test]
fn probe() {
    let only = std::env::var("ONLY").unwrap_or_default();
    for name in ["trace-native.jsonl.gz", "trace-held-out-native.jsonl.gz"] {
        for line in lines(name) {
            let label = format!(
                "{} {} {} {}x{}x{} b{} t{} {}",
                line["family"],
                line["operation"],
                line["dtype"],
                line["width"],
                line["height"],
                line["frames"],
                line["batch"],
                line["tokens"],
                line["options"]
            )
            .replace('"', "");
            if !label.contains(&only) {
                continue;
            }
            let Some(ours) = predicted(&line) else {
                println!("{label}: unsupported");
                continue;
            };
            let theirs = recorded(&line);
            let plain = |events: &[Event]| events.iter().map(|e| (e.0, e.1.next_multiple_of(512))).collect::<Vec<_>>();
            let (a, b) = (plain(&ours), plain(&theirs));
            let share = common(&a, &b) as f64 / a.len().max(b.len()) as f64;
            println!("{label}: {} recorded, {} predicted, {:.2} % in common", theirs.len(), ours.len(), 100.0 * share);
            if only.is_empty() {
                continue;
            }
            let mut from = 0;
            if let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) {
                from = at.saturating_sub(3);
            }
            println!(
                "  first difference at {}: ours {:?}\n theirs {:?}",
                from + 3,
                &ours[from..ours.len().min(from + 10)],
                &theirs[from..theirs.len().min(from + 10)]
            );
        }
    }
}
