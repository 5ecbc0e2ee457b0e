//! Sums and functions whose result depends on their arguments alone: no order of threads, no library of the machine.
//!
//! Every output element is one sum in one order, whoever computes it and whatever is computed beside it. Rust neither
//! reorders nor fuses floating-point operations, so equal inputs give equal bits.

use rayon::{ThreadPool, prelude::*};

/// Partial sums of a [`dot`] product: element `i` is added to sum `i % LANES`.
const LANES: usize = 8;
/// Rows that share one pass over a row of weights.
const ROWS: usize = 4;
/// Outputs that one thread computes at a time.
const TILE: usize = 32;

/// A matrix `[output][input]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    pub(crate) weights: Vec<f32>,
}

impl Matrix {
    pub(crate) fn row(&self, output: usize) -> &[f32] {
        &self.weights[output * self.inputs..][..self.inputs]
    }
}

/// The sum of the products, in [`LANES`] sums that are added in pairs, the rest behind them.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let [sum] = dots([a], b);
    sum
}

/// The [`dot`] product of each row with `weights`.
fn dots<const N: usize>(rows: [&[f32]; N], weights: &[f32]) -> [f32; N] {
    let (blocks, rest) = weights.as_chunks::<LANES>();
    let cut = rows.map(|row| row[..weights.len()].as_chunks::<LANES>());
    let mut lanes = [[0.0f32; LANES]; N];
    for (nth, weights) in blocks.iter().enumerate() {
        for (lanes, (row, _)) in lanes.iter_mut().zip(&cut) {
            let row = &row[nth];
            for lane in 0..LANES {
                lanes[lane] += row[lane] * weights[lane];
            }
        }
    }
    let mut sums = [0.0; N];
    for ((sum, lanes), (_, row_rest)) in sums.iter_mut().zip(&lanes).zip(&cut) {
        let pair = |lane: usize| (lanes[lane] + lanes[lane + 4]) + (lanes[lane + 2] + lanes[lane + 6]);
        *sum = pair(0) + pair(1);
        for (x, w) in row_rest.iter().zip(rest) {
            *sum += x * w;
        }
    }
    sums
}

/// Multiplies each row of `inputs`, `[row][input]`, with `matrix`, into `outputs`, `[row][output]`.
pub(crate) fn multiply(
    matrix: &Matrix,
    inputs: &[f32],
    outputs: &mut Vec<f32>,
    threads: Option<&ThreadPool>,
) {
    let rows = inputs.len() / matrix.inputs;
    // By output first: a thread then writes a stretch of its own.
    let mut by_output = vec![0.0; rows * matrix.outputs];
    let tile = |(nth, part): (usize, &mut [f32])| {
        for (within, sums) in part.chunks_exact_mut(rows).enumerate() {
            multiply_one(matrix.row(nth * TILE + within), inputs, sums);
        }
    };
    match threads {
        Some(threads) if rows > 0 => {
            threads.install(|| by_output.par_chunks_mut(TILE * rows).enumerate().for_each(tile));
        }
        _ => by_output.chunks_mut((TILE * rows).max(1)).enumerate().for_each(tile),
    }
    outputs.clear();
    if rows == 1 {
        outputs.append(&mut by_output);
        return;
    }
    for row in 0..rows {
        outputs.extend(by_output.iter().skip(row).step_by(rows));
    }
}

/// One output of each row.
fn multiply_one(weights: &[f32], inputs: &[f32], sums: &mut [f32]) {
    let len = weights.len();
    let mut fours = inputs.chunks_exact(ROWS * len);
    let mut sums = sums.iter_mut();
    for four in &mut fours {
        let rows: [&[f32]; ROWS] = std::array::from_fn(|nth| &four[nth * len..][..len]);
        for (sum, value) in sums.by_ref().take(ROWS).zip(dots(rows, weights)) {
            *sum = value;
        }
    }
    for (sum, row) in sums.zip(fours.remainder().chunks_exact(len)) {
        *sum = dot(row, weights);
    }
}

/// Scales `row` by its root mean square and `weights`, into `out`.
pub(crate) fn rms_norm(row: &[f32], weights: &[f32], epsilon: f32, out: &mut [f32]) {
    let mean = dot(row, row) / row.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(row).zip(weights) {
        *out = x * scale * weight;
    }
}

/// `e` to the power of `x`, to 2 in the last place, the same on every machine. Below -87 it is that of -87.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number from -126 to 127"
)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Added and taken away again, it rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    /// The natural logarithm of 2 in two parts; multiples of the first are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.clamp(-87.0, 88.0);
    let power = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let rest = x - power * LN_2[0] - power * LN_2[1];
    // The Taylor series, of which the next term is below 2^-24 for |rest| <= 0.35.
    let mut sum = 1.0 / 5040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * rest + term;
    }
    sum * f32::from_bits(((power as i32 + 127) as u32) << 23)
}

/// `x` times its logistic function.
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn values(seed: u64, len: usize) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        (0..len).map(|_| random.unit() * 2.0 - 1.0).collect()
    }

    #[test]
    fn exp_is_that_of_a_finer_type() {
        let mut worst: f64 = 0.0;
        for step in -8_700..8_800 {
            let x = step as f32 / 100.0;
            let fine = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - fine) / fine).abs());
        }
        assert!(worst < 2.4e-7, "off by {worst}");
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
        assert!(exp(-1e30) > 0.0 && exp(1e30).is_finite());
    }

    #[test]
    fn a_product_does_not_depend_on_the_rows_beside_it_nor_on_threads() {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for (outputs, inputs) in [(1, 1), (7, 13), (33, 8), (70, 40)] {
            let matrix = Matrix { outputs, inputs, weights: values(1, outputs * inputs) };
            let rows = values(2, 11 * inputs);
            let mut alone = Vec::new();
            for row in rows.chunks_exact(inputs) {
                alone.extend((0..outputs).map(|output| dot(row, matrix.row(output))));
            }
            for count in 0..=11 {
                for pool in [None, Some(&threads)] {
                    let mut all = Vec::new();
                    multiply(&matrix, &rows[..count * inputs], &mut all, pool);
                    assert_eq!(all, alone[..count * outputs], "{count} rows of {outputs} by {inputs}");
                }
            }
        }
    }

    #[test]
    fn a_sum_is_close_to_that_of_a_finer_type() {
        for len in [0, 1, 7, 8, 9, 100, 577] {
            let (a, b) = (values(3, len), values(4, len));
            let fine: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - fine).abs() < 1e-4, "{len}");
        }
    }
}
