//! What stands where a file is to be written stays what it is: a link, a pipe, a folder.

use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::Path;

use headroom_reports::output::write_whole;

crate::claims![
    a_link_stays_and_what_it_leads_to_is_replaced_whole,
    who_may_read_a_file_stays_as_it_was,
    what_is_no_file_is_written_into_and_stays_what_it_is,
];

fn a_link_stays_and_what_it_leads_to_is_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("elsewhere")).unwrap();
    std::fs::write(at("elsewhere/old"), "old").unwrap();
    let links = [("link", "elsewhere/old"), ("elsewhere/link", "new"), ("chain", "elsewhere/link")];
    for (link, to) in links {
        symlink(to, at(link)).unwrap();
    }
    let mut reader = std::fs::File::open(at("link")).unwrap();
    for (path, file) in [("link", "elsewhere/old"), ("chain", "elsewhere/new")] {
        write_whole(&at(path), path.as_bytes()).unwrap();
        assert_eq!(std::fs::read_to_string(at(file)).unwrap(), path);
        assert!(std::fs::symlink_metadata(at(file)).unwrap().is_file());
    }
    for (link, to) in links {
        assert_eq!(std::fs::read_link(at(link)).unwrap(), Path::new(to));
    }
    let mut seen = String::new();
    std::io::Read::read_to_string(&mut reader, &mut seen).unwrap();
    assert_eq!(seen, "old");
    // A link that leads to itself is an error, and stays too.
    symlink("ring", at("ring")).unwrap();
    assert!(write_whole(&at("ring"), b"new").is_err());
    assert_eq!(std::fs::read_link(at("ring")).unwrap(), Path::new("ring"));
}

fn who_may_read_a_file_stays_as_it_was() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("private"), folder.path().join("link"));
    symlink("private", &link).unwrap();
    write_whole(&file, b"old").unwrap();
    let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o644);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    for path in [&file, &link] {
        write_whole(path, b"new").unwrap();
        assert_eq!(mode(), 0o600, "{}", path.display());
    }
}

fn what_is_no_file_is_written_into_and_stays_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink(&pipe, &link).unwrap();
    for path in [&pipe, &link] {
        let reading = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::read_to_string(pipe).unwrap())
        };
        write_whole(path, b"a page").unwrap();
        // Before the join: nobody would ever write to a pipe that was replaced.
        assert!(std::fs::metadata(path).unwrap().file_type().is_fifo());
        assert_eq!(reading.join().unwrap(), "a page");
    }
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    // A folder cannot be written into, and nothing takes its place.
    assert!(write_whole(folder.path(), b"a page").is_err());
    assert!(folder.path().is_dir());
}
