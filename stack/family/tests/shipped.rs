//! The shipped family files hold no mistake and say what they are supposed to say.

use headroom_family::Family;

#[test]
fn every_shipped_family_is_free_of_mistakes() {
    match Family::embedded() {
        Ok(families) => assert!(!families.is_empty()),
        Err(error) => panic!("{error}"),
    }
}
