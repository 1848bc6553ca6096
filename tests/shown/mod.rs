//! Blocks of a README that a test derives: `<!-- NAME: begin -->` to `<!-- NAME: end -->`.

use std::path::Path;

/// Holds a block of a file in the repository against what it is to be. With `HEADROOM_BLESS=1` it is written anew
/// instead, after a wanted change: read the difference.
pub(crate) fn block(file: &str, name: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let marked = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let (before, (shown, after)) = marked.unwrap_or_else(|| panic!("{file} marks no block `{name}`"));
    if std::env::var_os("HEADROOM_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
        return;
    }
    assert!(shown == expected, "{file}: `{name}` shows other figures: run again with HEADROOM_BLESS=1");
}
