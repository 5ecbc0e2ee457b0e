//! What a kernel declares: the parameters of each entry of a PTX text.
//!
//! It executes nothing: a launch of what it has read ends as an instruction does that the device does not have.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    abi::{Code, Done},
    kernel::{Interpreter, Kernel, KernelMemory, Parameter, Program},
};

/// Reads declarations alone.
pub(crate) struct Declarations;

impl Interpreter for Declarations {
    fn load(&self, ptx: &str) -> Result<Box<dyn Program>, Code> {
        let entries = entries(ptx).ok_or(Code::INVALID_PTX)?;
        Ok(Box::new(Entries(entries)))
    }
}

struct Entries(BTreeMap<String, Arc<Entry>>);

impl Program for Entries {
    fn kernel(&self, name: &str) -> Option<Arc<dyn Kernel>> {
        let entry = Arc::clone(self.0.get(name)?);
        Some(entry)
    }
}

struct Entry {
    parameters: Vec<Parameter>,
}

impl Kernel for Entry {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn launch(&self, _: [u32; 3], _: [u32; 3], _: &[u8], _: &dyn KernelMemory) -> Done {
        // `CUDA_ERROR_ILLEGAL_INSTRUCTION`.
        Err(Code(715))
    }
}

/// The entries of a text; `None` if it is no PTX.
fn entries(ptx: &str) -> Option<BTreeMap<String, Arc<Entry>>> {
    let text: Vec<&str> = ptx.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let text = text.join(" ");
    if !text.contains(".version") || !text.contains(".target") {
        return None;
    }
    let mut found = BTreeMap::new();
    for declaration in text.split(".entry").skip(1) {
        let end = declaration.find(['(', '{'])?;
        let name = declaration[..end].trim().to_owned();
        let list = match declaration[end..].strip_prefix('(') {
            Some(rest) => &rest[..rest.find(')')?],
            None => "",
        };
        found.insert(name, Arc::new(Entry { parameters: parameters(list)? }));
    }
    Some(found)
}

/// The layout of a list as `.param .u64 a, .param .align 8 .b8 b[24]`.
fn parameters(list: &str) -> Option<Vec<Parameter>> {
    let mut end = 0_usize;
    let declared = list.split(',').map(str::trim).filter(|parameter| !parameter.is_empty());
    let places = declared.map(|parameter| {
        let (bytes, align) = size_of_parameter(parameter)?;
        let offset = end.checked_next_multiple_of(align)?;
        end = offset.checked_add(bytes)?;
        Some(Parameter { offset, bytes })
    });
    places.collect()
}

/// Size and alignment of a declaration.
fn size_of_parameter(parameter: &str) -> Option<(usize, usize)> {
    let mut words = parameter.split_whitespace().peekable();
    let (mut unit, mut align) = (None, None);
    while let Some(word) = words.next() {
        if word == ".align" {
            align = Some(words.next()?.parse::<usize>().ok()?);
        } else if let Some(bits) =
            word.strip_prefix('.').and_then(|word| word.get(1..)?.parse::<usize>().ok())
        {
            // The last one: `.ptr` may come with an alignment of its own behind the type.
            unit = unit.or(Some(bits / 8));
        }
    }
    let unit = unit.filter(|unit| [1, 2, 4, 8, 16].contains(unit))?;
    let count = match parameter.split_once('[') {
        Some((_, rest)) => rest.split_once(']')?.0.trim().parse::<usize>().ok()?,
        None => 1,
    };
    let align = align.filter(|_| parameter.contains('[')).unwrap_or(unit);
    (align.is_power_of_two()).then_some((unit.checked_mul(count)?, align))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(list: &str, expected: &[(usize, usize)]) {
        let found = parameters(list).expect("it is a list");
        let found: Vec<_> = found.iter().map(|parameter| (parameter.offset, parameter.bytes)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn parameters_are_laid_out_by_their_alignment() {
        check("", &[]);
        check(".param .u64 a, .param .u32 b, .param .u64 c", &[(0, 8), (8, 4), (16, 8)]);
        check(".param .u8 a, .param .f16 b,\n .param .b32 c", &[(0, 1), (2, 2), (4, 4)]);
        check(".param .u32 n, .param .align 8 .b8 s[24], .param .u8 last", &[(0, 4), (8, 24), (32, 1)]);
        check(".param .u64 .ptr .global .align 16 p, .param .u32 n", &[(0, 8), (8, 4)]);
    }

    #[test]
    fn a_text_without_version_and_target_is_no_module() {
        assert!(entries("int main() {}").is_none());
        let ptx = ".version 8.1\n.target sm_80\n.visible .entry k(\n.param .u64 k_0 // out\n)\n{ ret; }";
        let found = entries(ptx).expect("it is PTX");
        assert_eq!(found["k"].parameters, [Parameter { offset: 0, bytes: 8 }]);
    }
}
