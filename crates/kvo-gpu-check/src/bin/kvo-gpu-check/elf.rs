//! What a file of machine code asks for, and has, by its dynamic symbols.

use std::{fs::File, path::Path};

use anyhow::{Context, anyhow};
use object::{
    Endianness, ReadCache, elf,
    read::elf::{FileHeader, Sym},
};

type Header = elf::FileHeader64<Endianness>;

/// A symbol of another library that the loader looks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    /// As `GLIBC_2.34`; empty if none is asked for.
    pub(crate) version: String,
    pub(crate) symbol: String,
}

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Shared libraries, by name.
    pub(crate) libraries: Vec<String>,
    /// In order. Weak ones without a version may be missing, and are left out; for the others the loader wants their
    /// version, whether they are weak or not.
    pub(crate) imports: Vec<Import>,
}

/// Reads what a program asks for.
pub(crate) fn needs(path: &Path) -> anyhow::Result<Needs> {
    with_file(path, |data| {
        let header = Header::parse(data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, data)?;
        let dynamic = sections.dynamic_table(endian, data)?;
        let needed = dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
        let libraries: Result<Vec<String>, _> = needed.map(|entry| dynamic.string(entry).map(text)).collect();
        let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
        let versions = sections.versions(endian, data)?.unwrap_or_default();
        let mut imports = Vec::new();
        for (index, symbol) in symbols.enumerate() {
            let name = text(symbols.symbol_name(endian, symbol)?);
            let version = versions.version(versions.version_index(endian, index).index())?;
            let version = version.map(|version| text(version.name())).unwrap_or_default();
            let may_be_missing = symbol.is_weak() && version.is_empty();
            if symbol.is_undefined(endian) && !may_be_missing && !name.is_empty() {
                imports.push(Import { version, symbol: name });
            }
        }
        imports.sort();
        Ok(Needs { libraries: libraries?, imports })
    })
}

/// Whether a library has a symbol for others.
pub(crate) fn exports(path: &Path, wanted: &str) -> anyhow::Result<bool> {
    with_file(path, |data| {
        let header = Header::parse(data)?;
        let endian = header.endian()?;
        let symbols = header.sections(endian, data)?.symbols(endian, data, elf::SHT_DYNSYM)?;
        let is_it = |symbol: &elf::Sym64<Endianness>| {
            !symbol.is_undefined(endian)
                && symbols.symbol_name(endian, symbol).is_ok_and(|name| name == wanted.as_bytes())
        };
        Ok(symbols.iter().any(is_it))
    })
}

/// Reads of a file only what is asked for: a driver's library has a hundred megabytes.
fn with_file<T>(
    path: &Path,
    read: impl Fn(&ReadCache<File>) -> Result<T, object::Error>,
) -> anyhow::Result<T> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let cache = ReadCache::new(file);
    read(&cache).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_asks_for_its_library_and_has_names_for_no_one() {
        let program = std::env::current_exe().unwrap();
        let needs = needs(&program).unwrap();
        assert!(needs.libraries.iter().any(|library| library == "libc.so.6"), "{needs:?}");
        assert!(needs.imports.iter().any(|import| import.version.starts_with("GLIBC_2.")), "{needs:?}");
        assert!(!exports(&program, "kvofake_controls").unwrap());
        assert!(needs_of("no/such/file").is_err());
        assert!(needs_of(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).is_err());
    }

    fn needs_of(path: &str) -> anyhow::Result<Needs> {
        needs(Path::new(path))
    }
}
