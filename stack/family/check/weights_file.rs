//! Whether a file of weights that a family names is there and whole, by its header alone.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use safetensors::tensor::Metadata;

/// The bytes that say how long the header is, and the longest header that the format allows.
const LENGTH_BYTES: u64 = 8;
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// What is wrong with the file at `path`, if anything.
pub(super) fn mistake(path: &Path) -> Option<String> {
    match header(path) {
        Ok(found) => found.map(|reason| format!("{} is no usable safetensors file: {reason}", path.display())),
        Err(error) => Some(format!("{} cannot be read: {error}", path.display())),
    }
}

fn header(path: &Path) -> io::Result<Option<String>> {
    // Asked before it is opened, since opening a pipe waits for somebody to write to it.
    let about = std::fs::metadata(path)?;
    if !about.is_file() {
        return Ok(Some("it is no plain file".to_owned()));
    }
    let mut file = File::open(path)?;
    let mut length = [0; LENGTH_BYTES as usize];
    if about.len() < LENGTH_BYTES {
        return Ok(Some(format!("it has {} bytes", about.len())));
    }
    file.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    let rest_bytes = about.len() - LENGTH_BYTES;
    if header_bytes > rest_bytes.min(MOST_HEADER_BYTES) {
        return Ok(Some(format!("it has {} bytes and says that its header has {header_bytes}", about.len())));
    }
    let mut bytes = Vec::new();
    file.take(header_bytes).read_to_end(&mut bytes)?;
    let tensors_bytes = match serde_json::from_slice::<Metadata>(&bytes) {
        Ok(metadata) => metadata.data_len() as u64,
        Err(error) => return Ok(Some(format!("its header is none: {error}"))),
    };
    let held_bytes = rest_bytes - header_bytes;
    let is_whole = tensors_bytes == held_bytes;
    Ok((!is_whole)
        .then(|| format!("its tensors take {tensors_bytes} bytes, and it holds {held_bytes} of them: fetch it again")))
}
