//! As much of a Cargo manifest as the checks need.

/// A dependency that a manifest names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dependency<'a> {
    pub(super) name: &'a str,
    /// Line of the manifest, from 1.
    pub(super) line: usize,
    /// Whether it is for tests only.
    pub(super) dev: bool,
    /// Whether it comes with a feature only; told if that is said on its line.
    pub(super) optional: bool,
}

/// The dependencies of a package, of all targets. The list of a workspace is none.
pub(super) fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let mut found = Vec::new();
    // Whether the lines are dependencies, and for tests only.
    let mut section = None;
    for (index, line) in manifest.lines().enumerate() {
        let text = line.split('#').next().unwrap_or_default().trim();
        if let Some(header) = text.strip_prefix('[') {
            let header = header.trim_end_matches(']').trim();
            section = kind(header);
            // `[dependencies.name]`
            if let Some((table, name)) = header.rsplit_once('.')
                && let Some(dev) = kind(table)
            {
                found.push(Dependency { name: unquoted(name), line: index + 1, dev, optional: false });
            }
        } else if let (Some(dev), Some((left, right))) = (section, text.split_once('=')) {
            let name = left.split('.').next().unwrap_or_default();
            let optional = right.contains("optional = true");
            found.push(Dependency { name: unquoted(name), line: index + 1, dev, optional });
        }
    }
    found
}

/// Whether the table lists dependencies, and if so, whether for tests only.
fn kind(table: &str) -> Option<bool> {
    let last = if table.starts_with("target.") { table.rsplit('.').next()? } else { table };
    match last.trim() {
        "dependencies" | "build-dependencies" => Some(false),
        "dev-dependencies" => Some(true),
        _ => None,
    }
}

fn unquoted(name: &str) -> &str {
    name.trim().trim_matches('"')
}

/// The value of `name` under `[package]`, if this is the manifest of a package.
pub(super) fn package_name(manifest: &str) -> Option<&str> {
    let package = manifest.lines().skip_while(|line| line.trim() != "[package]").skip(1);
    package
        .take_while(|line| !line.trim_start().starts_with('['))
        .filter_map(|line| line.split_once('='))
        .find(|(left, _)| left.trim() == "name")
        .map(|(_, right)| unquoted(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"[package]
name = "kvo-x"
version.workspace = true

[dependencies]
slab.workspace = true # name = "no"
"kvo-core" = { path = "a", features = ["b"] }

[target.'cfg(unix)'.dependencies]
rustix = { version = "1", optional = true }

[dependencies.serde]
version = "1"

[dev-dependencies]
proptest = "1"

[workspace.dependencies]
cudarc = "1"

[features]
default = []
"#;

    #[test]
    fn dependencies_of_every_kind_are_found() {
        let found = dependencies(MANIFEST);
        let shown: Vec<_> = found.iter().map(|d| (d.name, d.line, d.dev, d.optional)).collect();
        assert_eq!(
            shown,
            [
                ("slab", 6, false, false),
                ("kvo-core", 7, false, false),
                ("rustix", 10, false, true),
                ("serde", 12, false, false),
                ("proptest", 16, true, false)
            ]
        );
    }

    #[test]
    fn the_package_is_named() {
        assert_eq!(package_name(MANIFEST), Some("kvo-x"));
        assert_eq!(package_name("[workspace]\nname = \"x\"\n"), None);
    }
}
