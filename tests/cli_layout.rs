//! Memory layouts on the command line.

mod binary;

use binary::headroom;

#[test]
fn another_layout_is_measured_apart_from_the_usual_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().to_str().unwrap();
    let calibrate = |layout: &str| {
        let arguments = ["calibrate", "--family", "taesd", "--device", "24GiB", "--layout", layout, "--store", store];
        let ran = headroom(&arguments);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
    };
    let plan = |layout: &str| {
        let arguments =
            ["plan", "--family", "taesd", "--device", "24GiB", "--layout", layout, "--store", store, "--json"];
        headroom(&arguments).json()["models"].to_string()
    };
    let before = (plan("contiguous"), plan("channels_last"));
    calibrate("channels_last");
    let after = (plan("contiguous"), plan("channels_last"));
    assert_eq!(before.0, after.0, "measured with channels innermost, and used where they are not");
    assert_ne!(before.1, after.1, "a calibration changes what its own layout is planned with");
    assert_eq!(headroom(&["plan", "--family", "taesd", "--device", "24GiB", "--layout", "innermost"]).code, 2);
}
