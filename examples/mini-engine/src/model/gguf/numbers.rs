//! From the number formats of GGUF to f32. Quantised ones come in blocks of 32 with a scale, some with an offset.

/// Numbers in a quantised block.
const BLOCK: usize = 32;

/// How a tensor's numbers are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// Numbers of a block.
    pub(super) block: usize,
    pub(super) block_bytes: usize,
    read: Read,
}

/// Adds the numbers of a block.
type Read = fn(&[u8], &mut Vec<f32>);

impl Format {
    /// The format with that number, if it is one that is read: F32, F16, BF16, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`.
    pub(super) fn of_kind(kind: u32) -> Option<Self> {
        let (block, block_bytes, read): (usize, usize, Read) = match kind {
            0 => (1, 4, |block, out| out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]]))),
            1 => (1, 2, |block, out| out.push(half(block, 0))),
            2 => (BLOCK, 18, |block, out| four_bits(block, half(block, 0), None, out)),
            3 => (BLOCK, 20, |block, out| four_bits(block, half(block, 0), Some(half(block, 2)), out)),
            6 => (BLOCK, 22, |block, out| five_bits(block, half(block, 0), None, out)),
            7 => (BLOCK, 24, |block, out| five_bits(block, half(block, 0), Some(half(block, 2)), out)),
            8 => (BLOCK, 34, eight_bits),
            30 => (1, 2, |block, out| {
                out.push(f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16));
            }),
            _ => return None,
        };
        Some(Self { block, block_bytes, read })
    }

    /// The numbers of whole blocks.
    pub(super) fn numbers(self, data: &[u8]) -> Vec<f32> {
        let mut numbers = Vec::with_capacity(data.len() / self.block_bytes * self.block);
        data.chunks_exact(self.block_bytes).for_each(|block| (self.read)(block, &mut numbers));
        numbers
    }
}

/// Half a byte each, the low halves first: steps above the offset, or around zero.
fn four_bits(block: &[u8], scale: f32, offset: Option<f32>, out: &mut Vec<f32>) {
    let packed = &block[block.len() - BLOCK / 2..];
    let value = |bits: u8| match offset {
        Some(offset) => f32::from(bits) * scale + offset,
        None => (f32::from(bits) - 8.0) * scale,
    };
    out.extend(packed.iter().map(|byte| value(byte & 15)));
    out.extend(packed.iter().map(|byte| value(byte >> 4)));
}

/// As [`four_bits`], with the fifth bits of all in four bytes before.
fn five_bits(block: &[u8], scale: f32, offset: Option<f32>, out: &mut Vec<f32>) {
    let (head, packed) = block.split_at(block.len() - BLOCK / 2);
    let high = &head[head.len() - 4..];
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let low = packed.iter().map(|byte| byte & 15).chain(packed.iter().map(|byte| byte >> 4));
    out.extend(low.enumerate().map(|(nth, low)| {
        let bits = if high >> nth & 1 == 1 { low + 16 } else { low };
        match offset {
            Some(offset) => f32::from(bits) * scale + offset,
            None => (f32::from(bits) - 16.0) * scale,
        }
    }));
}

fn eight_bits(block: &[u8], out: &mut Vec<f32>) {
    let scale = half(block, 0);
    out.extend(block[2..].iter().map(|byte| f32::from(byte.cast_signed()) * scale));
}

/// The half-precision number at `at`.
fn half(block: &[u8], at: usize) -> f32 {
    let bits = u32::from(u16::from_le_bytes([block[at], block[at + 1]]));
    let (sign, exponent, fraction) = ((bits & 0x8000) << 16, bits >> 10 & 31, bits & 0x3ff);
    match exponent {
        // Fractions of 2^-14, exact in the finer type.
        0 => f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: u32, block: &[u8], expected: impl Fn(usize) -> f32) {
        let format = Format::of_kind(kind).unwrap();
        assert_eq!(block.len(), format.block_bytes);
        let twice = format.numbers(&block.repeat(2));
        assert_eq!(twice.len(), 2 * format.block);
        for (nth, number) in twice.into_iter().enumerate() {
            assert_eq!(number.to_bits(), expected(nth % format.block).to_bits(), "number {nth}");
        }
    }

    #[test]
    fn halves_are_exact() {
        let cases = [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x83ff, -6.097_555e-5),
            (0x7c00, f32::INFINITY),
        ];
        for (bits, expected) in cases {
            let bits: u16 = bits;
            assert_eq!(half(&bits.to_le_bytes(), 0).to_bits(), f32::to_bits(expected), "{bits:#x}");
        }
    }

    #[test]
    fn blocks_become_what_was_quantised() {
        check(0, &1.5f32.to_le_bytes(), |_| 1.5);
        check(1, &[0x00, 0x3e], |_| 1.5);
        check(30, &[0xc0, 0x3f], |_| 1.5);
        // Scale 0.5, offset -1; number n has the bits n % 16 (low halves n, high halves 15 - n), or n % 32.
        let (scale, offset) = ([0x00, 0x38], [0x00, 0xbc]);
        let halves: Vec<u8> = (0..16).map(|nth| nth | (15 - nth) << 4).collect();
        let bits = |nth: usize| (if nth < 16 { nth } else { 31 - nth }) as f32;
        check(2, &[&scale[..], &halves].concat(), |nth| (bits(nth) - 8.0) * 0.5);
        check(3, &[&scale[..], &offset, &halves].concat(), |nth| bits(nth) * 0.5 - 1.0);
        // Every third number has its fifth bit.
        let high: u32 = (0..32).step_by(3).map(|nth| 1 << nth).sum();
        let high = high.to_le_bytes();
        let bits = |nth: usize| bits(nth) + if nth.is_multiple_of(3) { 16.0 } else { 0.0 };
        check(6, &[&scale[..], &high, &halves].concat(), |nth| (bits(nth) - 16.0) * 0.5);
        check(7, &[&scale[..], &offset, &high, &halves].concat(), |nth| bits(nth) * 0.5 - 1.0);
        let bytes: Vec<u8> = (0..32).map(|nth: i8| (nth * 4 - 64).cast_unsigned()).collect();
        check(8, &[&scale[..], &bytes].concat(), |nth| (nth as f32 * 4.0 - 64.0) * 0.5);
    }
}
