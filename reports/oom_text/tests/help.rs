//! Help that can be enough comes first, and what cannot says so.

use super::super::{Short, Suggestion};
use super::*;

#[test]
fn what_cannot_be_enough_alone_says_so_and_comes_after_what_can() {
    let bytes = 569 * MIB;
    // 1,348 MiB are missing from the driver; 128 of them lie unused in the allocator.
    let (_, explanation) = read(&message(2_048, 700, 569, 128));
    assert_eq!(explanation.help[0], Help::NeedLess { bytes: 1_220 * MIB }.into());
    let shorts: Vec<_> = explanation.help.iter().map(|suggestion| suggestion.short).collect();
    let setting = Short::StillMissing { gives_bytes: 128 * MIB, missing_bytes: 1_220 * MIB };
    let others = Short::OfMissing { gives_bytes: bytes, missing_bytes: 1_220 * MIB };
    assert_eq!(shorts, [None, Some(setting), Some(others), None]);
    let said = explanation.help[2].to_string();
    assert!(said.contains("569 MiB of the 1,220 MiB that are missing"), "{said}");
    let said = explanation.help[1].to_string();
    assert!(said.contains("the 128 MiB that are unused, and 1,220 MiB stay missing"), "{said}");
    // Others that hold enough go before a setting that is not.
    let (_, explanation) = read(&message(2_048, 700, 4_096, 128));
    let order = explanation.help.iter().map(|suggestion| &suggestion.help).collect::<Vec<_>>();
    assert!(
        matches!(
            order[..],
            [Help::NeedLess { .. }, Help::FreeOthers { .. }, Help::Environment { .. }, Help::RecordSnapshot]
        ),
        "{order:?}"
    );
    assert_eq!(explanation.help[1].short, None);
    // Enough with what is unused, and not without it.
    let (_, explanation) = read(&message(2_048, 700, 1_300, 128));
    let expected = Suggestion {
        help: Help::FreeOthers { bytes: 1_300 * MIB },
        short: Some(Short::WithUnused { unused_bytes: 128 * MIB }),
    };
    assert!(explanation.help.contains(&expected), "{:?}", explanation.help);
}

#[test]
fn a_setting_that_can_be_enough_is_recommended_without_reserve() {
    let (_, explanation) = read(&message(1_024, 700, 569, 1_200));
    assert_eq!(explanation.help[0].short, None);
    assert!(matches!(explanation.help[0].help, Help::Environment { .. }), "{:?}", explanation.help);
}

#[test]
fn below_a_limit_of_its_own_nothing_is_promised_of_what_others_give_back() {
    let limited =
        |limit: &str| message(2_048, 700, 4_096, 128).replace("is free.", &format!("is free. {limit} allowed;"));
    let (_, explanation) = read(&limited("7.40 GiB"));
    let others = explanation.help.iter().find(|suggestion| matches!(suggestion.help, Help::FreeOthers { .. })).unwrap();
    assert!(matches!(others.short, Some(Short::OfMissing { gives_bytes: 0, .. })), "{others:?}");
    // A limit that leaves all that is free reachable is not worth raising.
    let (_, explanation) = read(&limited("11.00 GiB"));
    let raises = |suggestion: &Suggestion| matches!(suggestion.help, Help::RaiseLimit { .. });
    assert!(!explanation.help.iter().any(raises), "{:?}", explanation.help);
}
