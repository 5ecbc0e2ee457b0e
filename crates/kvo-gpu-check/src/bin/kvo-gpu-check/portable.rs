//! `kvo-gpu-check needs`: whether a program runs on a machine that has nothing but a glibc.

use std::{path::Path, process::ExitCode};

use crate::{
    args::Glibc,
    elf::{self, Import, Needs},
    program::FAILED,
};

/// What every distribution with glibc has: glibc's own, and the unwinder of GCC.
const LIBRARIES: [&str; 5] =
    ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

pub(crate) fn run(file: &Path, newest: Glibc) -> anyhow::Result<ExitCode> {
    let needs = elf::needs(file)?;
    println!("libraries: {}", needs.libraries.join(", "));
    let versions = versions(&needs);
    let names: Vec<&str> = versions.iter().map(|(version, _)| version.as_str()).collect();
    println!("versions: {}", names.join(", "));
    if let Some((newest, symbols)) = versions.last() {
        println!("of {newest}: {}", symbols.join(", "));
    }
    let too_much = too_much(&needs, newest);
    for complaint in &too_much {
        eprintln!("error: {}: {complaint}", file.display());
    }
    if too_much.is_empty() {
        println!("it runs with glibc {}.{} and later", newest.0, newest.1);
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::from(FAILED))
    }
}

/// The symbols of each version that is asked for, the newest of glibc last.
fn versions(needs: &Needs) -> Vec<(String, Vec<&str>)> {
    let mut versions: Vec<(Option<Glibc>, String, Vec<&str>)> = Vec::new();
    for Import { version, symbol } in needs.imports.iter().filter(|import| !import.version.is_empty()) {
        match versions.iter_mut().find(|(_, known, _)| known == version) {
            Some((_, _, symbols)) => symbols.push(symbol),
            None => versions.push((glibc_of(version), version.clone(), vec![symbol])),
        }
    }
    versions.sort();
    versions.into_iter().map(|(_, version, symbols)| (version, symbols)).collect()
}

/// What a machine with that glibc lacks.
fn too_much(needs: &Needs, newest: Glibc) -> Vec<String> {
    let libraries = needs.libraries.iter().filter(|library| !LIBRARIES.contains(&library.as_str()));
    let libraries = libraries.map(|library| format!("it needs the library {library}"));
    let symbols = needs.imports.iter().filter(|Import { version, .. }| {
        version.starts_with("GLIBC_") && glibc_of(version).is_none_or(|version| version > newest)
    });
    let symbols = symbols.map(|Import { version, symbol }| {
        format!("it needs {symbol} of {version}, which glibc {}.{} lacks", newest.0, newest.1)
    });
    libraries.chain(symbols).collect()
}

fn glibc_of(version: &str) -> Option<Glibc> {
    version.strip_prefix("GLIBC_")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(libraries: &[&str], imports: &[(&str, &str)]) -> Needs {
        let import = |(version, symbol): &(&str, &str)| Import {
            version: (*version).to_owned(),
            symbol: (*symbol).to_owned(),
        };
        Needs {
            libraries: libraries.iter().map(|&library| library.to_owned()).collect(),
            imports: imports.iter().map(import).collect(),
        }
    }

    #[track_caller]
    fn check(needs: &Needs, expected: &[&str]) {
        assert_eq!(too_much(needs, Glibc(2, 34)), expected);
    }

    #[test]
    fn what_every_machine_has_is_not_too_much() {
        let imports =
            [("GLIBC_2.2.5", "write"), ("GLIBC_2.34", "dlopen"), ("GCC_3.0", "_Unwind_Resume"), ("", "x")];
        check(&needs(&["libc.so.6", "libgcc_s.so.1"], &imports), &[]);
    }

    #[test]
    fn a_newer_symbol_and_another_library_are_named() {
        let needs =
            needs(&["libc.so.6", "libz.so.1"], &[("GLIBC_2.39", "pidfd_spawnp"), ("GLIBC_PRIVATE", "y")]);
        let symbol = "it needs pidfd_spawnp of GLIBC_2.39, which glibc 2.34 lacks";
        let private = "it needs y of GLIBC_PRIVATE, which glibc 2.34 lacks";
        check(&needs, &["it needs the library libz.so.1", symbol, private]);
    }

    #[test]
    fn versions_are_in_the_order_of_their_numbers() {
        let needs = needs(&[], &[("GLIBC_2.17", "a"), ("GLIBC_2.2.5", "b"), ("GLIBC_2.17", "c")]);
        assert_eq!(
            versions(&needs),
            [("GLIBC_2.2.5".to_owned(), vec!["b"]), ("GLIBC_2.17".to_owned(), vec!["a", "c"])]
        );
    }
}
