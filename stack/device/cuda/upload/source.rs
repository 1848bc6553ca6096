//! Contents brought into this process's address space many pages at a time, before they are read one by one.

use crate::driver::DriverError;

/// Makes every page of `contents` readable at once, where the system can do that.
///
/// Reading a mapped file for the first time otherwise stops at every few pages. It also finds a file that was cut short
/// under the map, where reading behind the new end would end the process.
///
/// # Errors
/// When a page cannot be had any more.
#[cfg(target_os = "linux")]
pub(super) fn populate(contents: &[u8]) -> Result<(), DriverError> {
    use crate::driver::DriverCall;

    let page = page_bytes();
    let start = contents.as_ptr().addr() / page * page;
    let bytes = contents.as_ptr().addr() + contents.len() - start;
    // SAFETY: this only makes pages readable that the slice says are readable; the rest of its first and last page
    // belongs to the same map, and nothing is written anywhere.
    let answer = unsafe { libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_POPULATE_READ) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(code @ (libc::EFAULT | libc::EHWPOISON | libc::EIO)) => Err(DriverError::Failed {
            call: DriverCall::Copy,
            code: code.into(),
            reason: format!("the contents cannot be read any more ({error}); was the file behind them cut short?"),
        }),
        // A system that does not know the call reads page by page; what is wrong otherwise shows when it is read.
        _ => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn page_bytes() -> usize {
    static PAGE_BYTES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    // SAFETY: asking for a figure changes nothing.
    let asked = || usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    *PAGE_BYTES.get_or_init(asked)
}

/// Does nothing here: contents are read page by page.
///
/// # Errors
/// Never.
#[cfg(not(target_os = "linux"))]
pub(super) fn populate(_contents: &[u8]) -> Result<(), DriverError> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_cut_short_under_its_map_is_found_before_it_is_read() {
        let bytes = 16 * page_bytes();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; bytes]).unwrap();
        // SAFETY: nobody else has the file, and what is cut off below is not read.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        populate(&map).expect("a whole file");
        populate(&map[100..4000]).expect("part of a page");
        file.set_len(4 * page_bytes() as u64).unwrap();
        populate(&map[..4 * page_bytes()]).expect("what is still there");
        let error = populate(&map).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{error}");
        populate(&[]).expect("nothing to read");
    }
}
