//! Reads PTX: what stands outside of kernels' bodies, and their declarations.

mod body;
mod cursor;
mod lexer;
mod operation;
#[cfg(test)]
mod tests;

use self::cursor::Cursor;
use crate::{Kernel, Module, Param, ParseError, Reason, instruction::Type, machine::THREADS_MAX};

/// The most bytes of parameters that PTX 8.1 allows a kernel.
const PARAM_BYTES_MAX: usize = 32_764;

pub(crate) fn module(ptx: &str) -> Result<Module, ParseError> {
    let mut cursor = Cursor::new(lexer::tokens(ptx)?);
    let mut module = Module { version: version(&mut cursor)?, target: String::new(), kernels: Vec::new() };
    while !cursor.is_at_end() {
        match cursor.peek() {
            ".target" => {
                cursor.take();
                cursor.name()?.clone_into(&mut module.target);
            }
            ".address_size" => {
                cursor.take();
                let bits = cursor.integer()?;
                if bits != 64 {
                    return Err(cursor.error(Reason::AddressSize { bits }));
                }
            }
            // Whom the linker would show it.
            ".visible" | ".weak" => {
                cursor.take();
            }
            ".entry" => {
                cursor.take();
                let kernel = kernel(&mut cursor)?;
                if module.kernel(&kernel.name).is_some() {
                    return Err(cursor.error(Reason::Duplicate { name: kernel.name }));
                }
                module.kernels.push(kernel);
            }
            other => {
                return Err(cursor.error(Reason::UnknownDirective { directive: other.to_owned() }));
            }
        }
    }
    Ok(module)
}

/// `.version 8.1`, which every text begins with.
fn version(cursor: &mut Cursor<'_>) -> Result<(u32, u32), ParseError> {
    cursor.expect(".version")?;
    let parts = cursor.peek().split_once('.');
    let version = parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let version = version.ok_or_else(|| cursor.unexpected("a version as 8.1"))?;
    cursor.take();
    Ok(version)
}

/// A kernel from its name on.
fn kernel(cursor: &mut Cursor<'_>) -> Result<Kernel, ParseError> {
    let name = cursor.name()?.to_owned();
    let mut params: Vec<Param> = Vec::new();
    if cursor.take_if("(") && !cursor.take_if(")") {
        loop {
            let param = param(cursor, params.last())?;
            if params.iter().any(|other| other.name == param.name) {
                return Err(cursor.error(Reason::Duplicate { name: param.name }));
            }
            params.push(param);
            if cursor.take_if(")") {
                break;
            }
            cursor.expect(",")?;
        }
    }
    let threads_max = threads_max(cursor)?;
    let (registers, code) = body::read(cursor, &params)?;
    Ok(Kernel { name, params, threads_max, registers, code })
}

/// `.param .u64 name`, `.param .u64 .ptr .global .align 8 name` or `.param .align 8 .b8 name[24]`.
fn param(cursor: &mut Cursor<'_>, before: Option<&Param>) -> Result<Param, ParseError> {
    cursor.expect(".param")?;
    let align = cursor.take_if(".align").then(|| cursor.integer()).transpose()?;
    let kind = type_of(cursor.peek()).filter(|kind| kind.bytes > 0);
    let kind = kind.ok_or_else(|| cursor.unexpected("a type"))?;
    cursor.take();
    if cursor.take_if(".ptr") {
        pointer(cursor)?;
    }
    let name = cursor.name()?.to_owned();
    let mut count = 1;
    if cursor.take_if("[") {
        count = cursor.integer()?;
        cursor.expect("]")?;
    }
    let unit = usize::from(kind.bytes);
    let align = align.unwrap_or(u64::from(kind.bytes));
    let sensible = align.is_power_of_two() && align <= 128 && count > 0;
    let align = usize::try_from(align).ok().filter(|_| sensible);
    let align =
        align.ok_or_else(|| cursor.unexpected("a power of two up to 128 before, and a length above 0"))?;
    let offset = before.map_or(0, |before| before.offset + before.size).next_multiple_of(align.max(unit));
    let size = usize::try_from(count).ok().and_then(|count| count.checked_mul(unit));
    let size = size.filter(|size| *size <= PARAM_BYTES_MAX && offset + size <= PARAM_BYTES_MAX);
    let size = size.ok_or_else(|| cursor.error(Reason::TooMany { what: "bytes of parameters" }))?;
    Ok(Param { name, offset, size, align: align.max(unit) })
}

/// What a parameter of type pointer says of where it points to. Nothing here depends on it.
fn pointer(cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
    for space in [".global", ".const", ".shared", ".local"] {
        if cursor.take_if(space) {
            break;
        }
    }
    if cursor.take_if(".align") {
        cursor.integer()?;
    }
    Ok(())
}

/// The directives between a kernel's parameters and its body. `.maxntid 512, 1, 1` limits the block.
fn threads_max(cursor: &mut Cursor<'_>) -> Result<u32, ParseError> {
    let mut threads_max = THREADS_MAX;
    while cursor.peek() != "{" {
        match cursor.peek() {
            ".maxntid" => {
                cursor.take();
                let mut threads = cursor.integer()?;
                while cursor.take_if(",") {
                    threads = threads.saturating_mul(cursor.integer()?);
                }
                threads_max = u32::try_from(threads).unwrap_or(u32::MAX).clamp(1, THREADS_MAX);
            }
            // How registers are shared out.
            ".minnctapersm" | ".maxnreg" => {
                cursor.take();
                cursor.integer()?;
            }
            other if other.starts_with('.') => {
                return Err(cursor.error(Reason::UnknownDirective { directive: other.to_owned() }));
            }
            _ => return Err(cursor.unexpected("{")),
        }
    }
    Ok(threads_max)
}

/// The integer or predicate type of that name, `.u32` or `u32`.
fn type_of(name: &str) -> Option<Type> {
    let name = name.strip_prefix('.').unwrap_or(name);
    if name == "pred" {
        return Some(Type { bytes: 0, is_signed: false });
    }
    let (class, bits) = name.split_at_checked(1)?;
    let bytes = match bits {
        "8" => 1,
        "16" => 2,
        "32" => 4,
        "64" => 8,
        _ => return None,
    };
    matches!(class, "u" | "s" | "b").then_some(Type { bytes, is_signed: class == "s" })
}
