//! Runs the threads of a launch, one after the other.

use crate::{
    Fault, Kernel, Memory, Place,
    instruction::{Access, Binary, Comparison, Operation, SPECIAL, Type},
};

#[cfg(test)]
mod tests;

/// How many instructions a thread may run before it counts as caught in a loop: seconds of work.
pub const INSTRUCTIONS_PER_THREAD_MAX: u64 = 1 << 28;

/// The most threads that any GPU has in a block.
pub(crate) const THREADS_MAX: u32 = 1024;

const WARP: u32 = 32;

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Threads that ran.
    pub threads: u64,
    /// Instructions of all threads, those too whose guard was false.
    pub instructions: u64,
    /// Loads from memory; a vector is one.
    pub loads: u64,
    /// Stores to memory.
    pub stores: u64,
    /// Bytes loaded from memory.
    pub loaded_bytes: u64,
    /// Bytes stored to memory.
    pub stored_bytes: u64,
}

/// Why a thread stopped, without where.
enum Stop {
    Misaligned { address: u64, bytes: u32 },
    BadAddress { address: u64, bytes: u32, is_store: bool },
    DivisionByZero,
    TooLong,
}

pub(crate) fn launch(
    kernel: &Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    params: &[u8],
    memory: &dyn Memory,
    instructions_per_thread_max: u64,
) -> Result<Stats, Fault> {
    let threads = block.iter().try_fold(1_u32, |product, &side| product.checked_mul(side));
    if grid.contains(&0) || !threads.is_some_and(|threads| (1..=kernel.threads_max).contains(&threads)) {
        return Err(Fault::Shape { grid, block, threads_max: kernel.threads_max });
    }
    if params.len() != kernel.param_bytes() {
        return Err(Fault::Params { declared: kernel.param_bytes(), got: params.len() });
    }
    let max = instructions_per_thread_max;
    let registers = kernel.registers.clone();
    let mut thread = Thread { kernel, params, memory, max, registers, next: 0, stats: Stats::default() };
    for cta in positions(grid) {
        for (nth, position) in (0_u32..).zip(positions(block)) {
            thread.begin(grid, block, cta, position, nth % WARP);
            let stopped = thread.run();
            thread.stats.threads += 1;
            if let Err(stop) = stopped {
                let line = kernel.code[thread.next].line;
                return Err(stop.at(Place { line, cta, thread: position }, max));
            }
        }
    }
    Ok(thread.stats)
}

/// All positions in a box of `sides`, x fastest.
fn positions(sides: [u32; 3]) -> impl Iterator<Item = [u32; 3]> {
    let [sides_x, sides_y, sides_z] = sides;
    (0..sides_z).flat_map(move |z| (0..sides_y).flat_map(move |y| (0..sides_x).map(move |x| [x, y, z])))
}

impl Stop {
    fn at(self, place: Place, max: u64) -> Fault {
        match self {
            Self::Misaligned { address, bytes } => Fault::Misaligned { address, bytes, place },
            Self::BadAddress { address, bytes, is_store } => {
                Fault::BadAddress { address, bytes, is_store, place }
            }
            Self::DivisionByZero => Fault::DivisionByZero { place },
            Self::TooLong => Fault::TooLong { max, place },
        }
    }
}

/// The thread that runs, and what the launch has in common.
struct Thread<'a> {
    kernel: &'a Kernel,
    params: &'a [u8],
    memory: &'a dyn Memory,
    max: u64,
    registers: Vec<u64>,
    /// The instruction that runs, or that stopped the thread.
    next: usize,
    stats: Stats,
}

impl Thread<'_> {
    fn begin(&mut self, grid: [u32; 3], block: [u32; 3], cta: [u32; 3], thread: [u32; 3], lane: u32) {
        self.next = 0;
        self.registers.copy_from_slice(&self.kernel.registers);
        let special = [thread, block, cta, grid].into_iter().flatten().chain([lane]);
        for (register, value) in self.registers[..SPECIAL.len()].iter_mut().zip(special) {
            *register = u64::from(value);
        }
    }

    /// Runs to the end. Each kernel ends with a return, so there is always a next instruction.
    fn run(&mut self) -> Result<(), Stop> {
        let kernel = self.kernel;
        let mut left = self.max;
        let result = loop {
            if left == 0 {
                break Err(Stop::TooLong);
            }
            left -= 1;
            let instruction = &kernel.code[self.next];
            if let Some(guard) = instruction.guard
                && self.get(guard.predicate) != guard.wanted
            {
                self.next += 1;
                continue;
            }
            match &instruction.operation {
                Operation::Branch { target } => self.next = *target as usize,
                Operation::Return => break Ok(()),
                straight => {
                    if let Err(stop) = self.step(straight) {
                        break Err(stop);
                    }
                    self.next += 1;
                }
            }
        };
        self.stats.instructions += self.max - left;
        result
    }

    /// Runs an instruction that the next one follows.
    fn step(&mut self, operation: &Operation) -> Result<(), Stop> {
        match *operation {
            Operation::Load(ref access) => self.load(access)?,
            Operation::Store(ref access) => self.store(access)?,
            Operation::LoadParam { to, to_bytes, offset, kind } => {
                let value = element(&self.params[offset as usize..], kind.bytes);
                self.set(to, Type::unsigned(to_bytes).truncate(kind.extend(value)));
            }
            Operation::Move { to, from } => self.set(to, self.get(from)),
            Operation::Not { kind, to, from } => self.set(to, kind.truncate(!self.get(from))),
            Operation::Negate { kind, to, from } => {
                self.set(to, kind.truncate(self.get(from).wrapping_neg()));
            }
            Operation::Convert { from_kind, kind, to_bytes, to, from } => {
                let value = kind.extend(from_kind.extend(self.get(from)));
                self.set(to, Type::unsigned(to_bytes).truncate(value));
            }
            Operation::Binary { operator, kind, to, a, b } => {
                let value = binary(operator, kind, self.get(a), self.get(b)).ok_or(Stop::DivisionByZero)?;
                self.set(to, value);
            }
            Operation::MultiplyAdd { product, kind, to, a, b, c } => {
                let value = binary(product, kind, self.get(a), self.get(b)).ok_or(Stop::DivisionByZero)?;
                let bytes = if product == Binary::MultiplyWide { kind.bytes * 2 } else { kind.bytes };
                self.set(to, Type::unsigned(bytes).truncate(value.wrapping_add(self.get(c))));
            }
            Operation::Compare { comparison, kind, to, a, b } => {
                self.set(to, u64::from(compare(comparison, kind, self.get(a), self.get(b))));
            }
            Operation::Select { to, a, b, predicate } => {
                self.set(to, self.get(if self.get(predicate) == 0 { b } else { a }));
            }
            Operation::Branch { .. } | Operation::Return => unreachable!("the loop above runs it"),
        }
        Ok(())
    }

    #[inline]
    fn get(&self, register: u32) -> u64 {
        self.registers[register as usize]
    }

    #[inline]
    fn set(&mut self, register: u32, value: u64) {
        self.registers[register as usize] = value;
    }

    fn load(&mut self, access: &Access) -> Result<(), Stop> {
        let (address, bytes) = self.aligned(access)?;
        let mut buffer = [0; 16];
        let buffer = &mut buffer[..bytes as usize];
        let read = self.memory.read(address, buffer);
        read.map_err(|_| Stop::BadAddress { address, bytes, is_store: false })?;
        let size = usize::from(access.kind.bytes);
        for (nth, &to) in access.elements[..usize::from(access.num_elements)].iter().enumerate() {
            let value = access.kind.extend(element(&buffer[nth * size..], access.kind.bytes));
            self.set(to, Type::unsigned(access.register_bytes).truncate(value));
        }
        self.stats.loads += 1;
        self.stats.loaded_bytes += u64::from(bytes);
        Ok(())
    }

    fn store(&mut self, access: &Access) -> Result<(), Stop> {
        let (address, bytes) = self.aligned(access)?;
        let mut buffer = [0; 16];
        let size = usize::from(access.kind.bytes);
        for (nth, &from) in access.elements[..usize::from(access.num_elements)].iter().enumerate() {
            buffer[nth * size..][..size].copy_from_slice(&self.get(from).to_le_bytes()[..size]);
        }
        let written = self.memory.write(address, &buffer[..bytes as usize]);
        written.map_err(|_| Stop::BadAddress { address, bytes, is_store: true })?;
        self.stats.stores += 1;
        self.stats.stored_bytes += u64::from(bytes);
        Ok(())
    }

    /// The address of an access, and how many bytes it has.
    fn aligned(&self, access: &Access) -> Result<(u64, u32), Stop> {
        let bytes = u32::from(access.kind.bytes) * u32::from(access.num_elements);
        let address = self.get(access.base).wrapping_add_signed(access.offset);
        if address.is_multiple_of(u64::from(bytes)) {
            Ok((address, bytes))
        } else {
            Err(Stop::Misaligned { address, bytes })
        }
    }
}

/// The first `bytes` of `buffer`, little-endian.
fn element(buffer: &[u8], bytes: u8) -> u64 {
    let mut value = [0; 8];
    value[..usize::from(bytes)].copy_from_slice(&buffer[..usize::from(bytes)]);
    u64::from_le_bytes(value)
}

/// The result, extended with zeros; none for a division by 0.
fn binary(operator: Binary, kind: Type, a: u64, b: u64) -> Option<u64> {
    let value = match operator {
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::MultiplyLow => a.wrapping_mul(b),
        Binary::MultiplyHigh => multiply_high(kind, a, b),
        Binary::MultiplyWide => {
            // At most 4 bytes times 4 bytes.
            let product = kind.extend(a).wrapping_mul(kind.extend(b));
            return Some(Type::unsigned(kind.bytes * 2).truncate(product));
        }
        Binary::Divide => divide(kind, a, b)?,
        Binary::Remainder => a.wrapping_sub(divide(kind, a, b)?.wrapping_mul(b)),
        Binary::ShiftLeft => {
            if b < u64::from(kind.bits()) {
                a << b
            } else {
                0
            }
        }
        Binary::ShiftRight if kind.is_signed => (kind.extend(a).cast_signed() >> b.min(63)).cast_unsigned(),
        Binary::ShiftRight => {
            if b < u64::from(kind.bits()) {
                a >> b
            } else {
                0
            }
        }
        Binary::Min => {
            if compare(Comparison::Less, kind, a, b) {
                a
            } else {
                b
            }
        }
        Binary::Max => {
            if compare(Comparison::Less, kind, a, b) {
                b
            } else {
                a
            }
        }
    };
    Some(kind.truncate(value))
}

fn multiply_high(kind: Type, a: u64, b: u64) -> u64 {
    if kind.is_signed {
        let product = i128::from(kind.extend(a).cast_signed()) * i128::from(kind.extend(b).cast_signed());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the caller wants the lower bits of the upper half"
        )]
        let high = (product >> kind.bits()) as i64;
        high.cast_unsigned()
    } else {
        #[expect(clippy::cast_possible_truncation, reason = "the upper half of a product has half its bits")]
        let high = ((u128::from(a) * u128::from(b)) >> kind.bits()) as u64;
        high
    }
}

/// The quotient towards zero. The one of the least number by -1 wraps around.
fn divide(kind: Type, a: u64, b: u64) -> Option<u64> {
    if b == 0 {
        None
    } else if kind.is_signed {
        Some(kind.extend(a).cast_signed().wrapping_div(kind.extend(b).cast_signed()).cast_unsigned())
    } else {
        Some(a / b)
    }
}

fn compare(comparison: Comparison, kind: Type, a: u64, b: u64) -> bool {
    let order = if kind.is_signed {
        kind.extend(a).cast_signed().cmp(&kind.extend(b).cast_signed())
    } else {
        a.cmp(&b)
    };
    match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }
}
