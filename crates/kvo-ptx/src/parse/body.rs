//! Reads the body of a kernel: registers, labels, and statements one by one.

use std::collections::HashMap;

use super::{cursor::Cursor, operation, type_of};
use crate::{
    Param, ParseError, Reason,
    instruction::{Guard, Instruction, Operation, Register, SPECIAL, Type},
};

/// What a register holds that nothing was written to. No kernel may depend on it.
const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;

const REGISTERS_MAX: usize = 1 << 16;

/// A register that an operand names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    pub(super) place: Register,
    /// 0 for a predicate.
    pub(super) bytes: u8,
}

/// What has been read of a body.
pub(super) struct Body<'p, 'a> {
    pub(super) params: &'p [Param],
    names: HashMap<String, Declared>,
    /// What each place of the file of registers holds when a thread begins.
    file: Vec<u64>,
    immediates: HashMap<u64, Register>,
    code: Vec<Instruction>,
    labels: HashMap<&'a str, u32>,
    /// Branches whose label may stand further down: the instruction, its label, its line.
    open: Vec<(usize, &'a str, u32)>,
}

/// Reads a body with its braces: the file of registers at a thread's start, and the instructions, which end with a
/// return.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    params: &[Param],
) -> Result<(Vec<u64>, Vec<Instruction>), ParseError> {
    let names = (0..).zip(SPECIAL).map(|(place, name)| (name.to_owned(), Declared { place, bytes: 4 }));
    let mut body = Body {
        params,
        names: names.collect(),
        file: vec![0; SPECIAL.len()],
        immediates: HashMap::new(),
        code: Vec::new(),
        labels: HashMap::new(),
        open: Vec::new(),
    };
    cursor.expect("{")?;
    while cursor.peek() != "}" {
        body.statement(cursor)?;
    }
    body.code.push(Instruction { line: cursor.line(), guard: None, operation: Operation::Return });
    cursor.take();
    for (branch, label, line) in std::mem::take(&mut body.open) {
        let unknown = || ParseError { line, reason: Reason::UnknownLabel { name: label.to_owned() } };
        let target = *body.labels.get(label).ok_or_else(unknown)?;
        body.code[branch].operation = Operation::Branch { target };
    }
    Ok((body.file, body.code))
}

impl<'a> Body<'_, 'a> {
    /// Reads a declaration, a label or an instruction.
    fn statement(&mut self, cursor: &mut Cursor<'a>) -> Result<(), ParseError> {
        match cursor.peek() {
            ".reg" => self.declaration(cursor),
            // A wish to the compiler behind this text.
            ".pragma" => cursor.skip_statement(),
            other if other.starts_with('.') => {
                Err(cursor.error(Reason::UnknownDirective { directive: other.to_owned() }))
            }
            _ if cursor.peek_at(1) == ":" => self.label(cursor),
            _ => self.instruction(cursor),
        }
    }

    /// `.reg .b32 %r<4>, %x;`
    fn declaration(&mut self, cursor: &mut Cursor<'a>) -> Result<(), ParseError> {
        cursor.expect(".reg")?;
        let kind = type_of(cursor.peek()).ok_or_else(|| cursor.unexpected("a type of integers or .pred"))?;
        cursor.take();
        loop {
            let name = cursor.name()?;
            if cursor.take_if("<") {
                let count = cursor.integer()?;
                if count > REGISTERS_MAX as u64 {
                    return Err(cursor.error(Reason::TooMany { what: "registers" }));
                }
                for nth in 0..count {
                    self.declare(cursor, format!("{name}{nth}"), kind)?;
                }
                cursor.expect(">")?;
            } else {
                self.declare(cursor, name.to_owned(), kind)?;
            }
            if cursor.take_if(";") {
                return Ok(());
            }
            cursor.expect(",")?;
        }
    }

    fn declare(&mut self, cursor: &Cursor<'_>, name: String, kind: Type) -> Result<(), ParseError> {
        let place = self.place(cursor, kind.truncate(POISON))?;
        if self.names.contains_key(&name) {
            return Err(cursor.error(Reason::Duplicate { name }));
        }
        self.names.insert(name, Declared { place, bytes: kind.bytes });
        Ok(())
    }

    /// A new place in the file of registers.
    fn place(&mut self, cursor: &Cursor<'_>, at_start: u64) -> Result<Register, ParseError> {
        let place = u32::try_from(self.file.len()).ok().filter(|_| self.file.len() < REGISTERS_MAX);
        self.file.push(at_start);
        place.ok_or_else(|| cursor.error(Reason::TooMany { what: "registers" }))
    }

    fn label(&mut self, cursor: &mut Cursor<'a>) -> Result<(), ParseError> {
        let name = cursor.name()?;
        if self.labels.insert(name, self.code_len(cursor)?).is_some() {
            return Err(cursor.error(Reason::Duplicate { name: name.to_owned() }));
        }
        cursor.expect(":")
    }

    fn code_len(&self, cursor: &Cursor<'_>) -> Result<u32, ParseError> {
        u32::try_from(self.code.len()).map_err(|_| cursor.error(Reason::TooMany { what: "instructions" }))
    }

    /// `@!%p1 bra $label;`, or any other.
    fn instruction(&mut self, cursor: &mut Cursor<'a>) -> Result<(), ParseError> {
        let line = cursor.line();
        let guard = if cursor.take_if("@") { Some(self.guard(cursor)?) } else { None };
        let name = cursor.name()?;
        let operation = if matches!(name, "bra" | "bra.uni") {
            self.open.push((self.code.len(), cursor.name()?, line));
            // The label may stand further down: its number is put in at the end.
            Operation::Branch { target: 0 }
        } else {
            operation::read(self, cursor, name, line)?
        };
        cursor.expect(";")?;
        self.code.push(Instruction { line, guard, operation });
        Ok(())
    }

    fn guard(&mut self, cursor: &mut Cursor<'a>) -> Result<Guard, ParseError> {
        let wanted = u64::from(!cursor.take_if("!"));
        let declared = self.declared(cursor)?;
        if declared.bytes != 0 {
            return Err(cursor.unexpected("a predicate before"));
        }
        Ok(Guard { predicate: declared.place, wanted })
    }

    /// Takes the name of a register.
    pub(super) fn declared(&mut self, cursor: &mut Cursor<'a>) -> Result<Declared, ParseError> {
        let Some(&declared) = self.names.get(cursor.peek()) else {
            return Err(match cursor.name() {
                Ok(name) => cursor.error(Reason::UnknownRegister { name: name.to_owned() }),
                Err(error) => error,
            });
        };
        cursor.take();
        Ok(declared)
    }

    /// The place of an immediate.
    pub(super) fn immediate(&mut self, cursor: &Cursor<'_>, value: u64) -> Result<Register, ParseError> {
        if let Some(&place) = self.immediates.get(&value) {
            return Ok(place);
        }
        let place = self.place(cursor, value)?;
        self.immediates.insert(value, place);
        Ok(place)
    }
}
