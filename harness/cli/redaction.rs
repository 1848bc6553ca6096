//! What must not be in a report of this process: its machine's names and the places that it was told of.

use std::path::{Path, PathBuf};

use headroom_family::Family;
use headroom_reports::Redaction;

/// This process's names and places. `families` is the folder of `--families`, `output` where the report goes.
pub(super) fn redaction(known: &[Family], families: Option<&Path>, output: &Path) -> Redaction {
    let root = std::env::current_dir().ok();
    let mut places: Vec<(PathBuf, String)> = Vec::new();
    places.extend(std::env::home_dir().map(|home| (home, "<home>".to_owned())));
    places.extend(families.map(|folder| (folder.to_owned(), "<families>".to_owned())));
    places.push((output.to_owned(), "<output>".to_owned()));
    places.extend(known.iter().flat_map(weights));
    // Messages name a place as it was given, as an absolute path, or as the system resolves it.
    let forms = places.into_iter().flat_map(|(path, words)| {
        let resolved = [std::path::absolute(&path).ok(), path.canonicalize().ok()];
        std::iter::once(path).chain(resolved.into_iter().flatten()).map(move |path| (path, words.clone()))
    });
    // What lies below the root is named relative to it.
    let outside = |path: &Path| root.as_ref().is_none_or(|root| !path.starts_with(root) || root.file_name().is_none());
    let known = forms.filter(|(path, _)| outside(path)).collect();
    Redaction { root, known, names: names() }
}

/// Who runs this and where, as far as the environment and the kernel say. Shells often keep the host's name to themselves.
fn names() -> Vec<String> {
    let variables = ["USER", "LOGNAME", "USERNAME", "HOSTNAME", "COMPUTERNAME"];
    let told = variables.into_iter().filter_map(|name| std::env::var(name).ok());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").map(|host| host.trim().to_owned());
    told.chain(host.ok().filter(|host| host != "localhost")).collect()
}

/// The files of a family's weights.
fn weights(family: &Family) -> impl Iterator<Item = (PathBuf, String)> {
    family.models.iter().filter_map(|model| {
        let path = model.safetensors.clone()?;
        Some((path, format!("<weights of {} {}>", family.name, model.key)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_weights_is_named_by_whose_they_are_whatever_its_folder_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Jane Doe/my models/w.safetensors");
        let catalogue = crate::catalogue::Catalogue::load(None).unwrap();
        let mut family = catalogue.family("taesd").unwrap().clone();
        family.models[0].safetensors = Some(path.clone());
        let redaction = redaction(&[family], None, &folder.path().join("Jane Doe/out"));
        for (text, expected) in [
            (format!("cannot read {}: gone", path.display()), "cannot read <weights of taesd vae>: gone"),
            (format!("`{}`", path.display()), "`<weights of taesd vae>`"),
            (
                format!("{}: full", folder.path().join("Jane Doe/out/report.json").display()),
                "<output>/report.json: full",
            ),
        ] {
            assert_eq!(redaction.text(&text), expected);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_hosts_name_is_taken_out_whether_or_not_a_variable_has_it() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        let redacted = redaction(&[], None, Path::new("out")).text(&format!("lost the connection to {host}."));
        assert_eq!(redacted.contains(host), host == "localhost" || host.chars().count() < 3, "{redacted}");
        assert!(redacted.starts_with("lost the connection to "), "{redacted}");
    }
}
