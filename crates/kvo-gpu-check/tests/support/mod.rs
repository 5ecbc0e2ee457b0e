//! What the tests over every device share.

/// A test for each case, with its name, by the `check` of the test's root.
macro_rules! tests {
    ($($group:ident { $($case:ident)* })*) => {
        $(mod $group {
            $(#[test]
            fn $case() {
                super::check(stringify!($case));
            })*
        })*
    };
}
