//! What amdgpu's fdinfo files say, in the kernel's documented form (docs.kernel.org/gpu/drm-usage-stats.html).

use std::fs;

use headroom_base::{MIB, Reading};
use headroom_device::readers::{AmdgpuReader, FdinfoError, ProcessReader, drm_memory_bytes};

use crate::rig::Wishes;

const PCI: &str = "0000:03:00.0";

/// One open file of an amdgpu render node, as kernels before 6.13 write it.
fn before_6_13(client: u32, vram_kib: u64) -> String {
    format!(
        "pos:\t0\nflags:\t02100002\nmnt_id:\t28\nino:\t1104\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\n\
         drm-pdev:\t{PCI}\npasid:\t32771\ndrm-memory-vram:\t{vram_kib} KiB\ndrm-memory-gtt: \t2048 KiB\n\
         drm-memory-cpu: \t0 KiB\namd-evicted-vram:\t0 KiB\namd-requested-vram:\t{vram_kib} KiB\n\
         drm-engine-gfx:\t123456789 ns\n"
    )
}

/// The same with the keys that later kernels write beside it.
fn from_6_13(client: u32, vram: &str) -> String {
    format!(
        "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{PCI}\ndrm-total-vram:\t9999 MiB\n\
         drm-shared-vram:\t0\ndrm-active-vram:\t0\ndrm-resident-vram:\t{vram}\ndrm-purgeable-vram:\t0\n\
         drm-memory-vram:\t{vram}\n"
    )
}

fn read(folder: &tempfile::TempDir) -> Result<Reading, String> {
    let rig = Wishes::mib(100).rig();
    let mut reader = AmdgpuReader::of_folder(folder.path(), PCI);
    assert!(!reader.verified(), "nobody saw it beside an allocator on hardware");
    rig.device.with_memory(|memory| reader.read(memory)).map_err(|error| error.to_string())
}

#[test]
fn the_figure_is_read_in_every_form_the_kernel_documents() {
    let cases = [
        (before_6_13(7, 1_048_576), Reading::Bytes(1_024 * MIB)),
        (from_6_13(7, "12 MiB"), Reading::Bytes(12 * MIB)),
        (from_6_13(7, "4096"), Reading::Bytes(4_096)),
        (from_6_13(7, "0"), Reading::Bytes(0)),
        (before_6_13(7, 5).replace("amdgpu", "i915"), Reading::Unknown),
        (before_6_13(7, 5).replace(PCI, "0000:04:00.0"), Reading::Unknown),
        (before_6_13(7, 5).replace("drm-memory-vram", "drm-memory-gtt"), Reading::Unknown),
        ("pos:\t0\nflags:\t02\n".to_owned(), Reading::Unknown),
        (String::new(), Reading::Unknown),
    ];
    for (text, reading) in cases {
        assert_eq!(drm_memory_bytes(&text, PCI), Ok(reading), "{text}");
    }
}

#[test]
fn a_figure_that_is_no_size_is_an_error_and_never_a_number() {
    for value in ["N/A", "12 GB", "-5 KiB", "1 2 KiB", "1.5 MiB", ""] {
        let outcome = drm_memory_bytes(&from_6_13(1, value), PCI);
        assert!(matches!(outcome, Err(FdinfoError::NotASize { .. })), "{value}: {outcome:?}");
    }
    for value in ["18446744073709551615 KiB", "99999999999999999999"] {
        let outcome = drm_memory_bytes(&from_6_13(1, value), PCI);
        assert!(matches!(outcome, Err(FdinfoError::TooLarge { .. })), "{value}: {outcome:?}");
    }
}

#[test]
fn clients_are_summed_and_a_client_with_two_files_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(read(&folder), Ok(Reading::Unknown), "no client tells");
    for (name, text) in [
        ("3", "pos:\t0\n".to_owned()),
        ("5", before_6_13(7, 1_024)),
        ("6", before_6_13(7, 1_024)),
        ("8", before_6_13(9, 2_048)),
        ("9", before_6_13(10, 4_096).replace("amdgpu", "nouveau")),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    assert_eq!(read(&folder), Ok(Reading::Bytes(3 * MIB)));
    fs::write(folder.path().join("11"), from_6_13(12, "N/A")).unwrap();
    assert!(read(&folder).is_err());
}

#[test]
fn a_folder_that_is_not_there_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Wishes::mib(100).rig();
    let mut reader = AmdgpuReader::of_folder(folder.path().join("absent"), PCI);
    assert_eq!(rig.device.with_memory(|memory| reader.read(memory)).unwrap(), Reading::Unknown);
}
