//! Published figures of policies under model R, to compare with integer by integer.
//!
//! The rows of `lru` and `arc` agree with vLLM 0.33's CPU offload manager, those of `opt` can be computed from its
//! definition in one way only; the others come from one other implementation.

use kvo_policies::{GhostHits, PolicyKind, S3FifoOptions};

use crate::{Contender, Fingerprint, PolicyResult};

/// What is published of one cell: a policy at a capacity on a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Golden {
    /// The trace's fingerprint.
    pub trace: u64,
    /// The policy.
    pub policy: Contender,
    /// Slots.
    pub capacity: u32,
    /// Prefix hits.
    pub hits: u64,
    /// Number of evictions and the fingerprint of their order, where they are published.
    pub evictions: Option<(u64, u64)>,
}

impl Golden {
    /// The published figures of a cell.
    pub fn of(trace: Fingerprint, policy: Contender, capacity: u32) -> Option<Self> {
        all().find(|cell| cell.trace == trace.value() && cell.policy == policy && cell.capacity == capacity)
    }

    /// Whether a result is as published.
    pub fn agrees(&self, result: &PolicyResult) -> bool {
        result.hits == self.hits
            && self.evictions.is_none_or(|(evictions, order)| {
                result.evictions == evictions && result.eviction_order.value() == order
            })
    }
}

/// Every published cell.
pub fn all() -> impl Iterator<Item = Golden> {
    TRACES.iter().flat_map(|trace| {
        trace.rows.iter().flat_map(|row| {
            (0..5).map(|at| Golden {
                trace: trace.fingerprint,
                policy: row.policy,
                capacity: trace.capacities[at],
                hits: row.hits[at],
                evictions: row.evictions.map(|evictions| evictions[at]),
            })
        })
    })
}

struct TraceRows {
    fingerprint: u64,
    capacities: [u32; 5],
    rows: [Row; 10],
}

struct Row {
    policy: Contender,
    hits: [u64; 5],
    evictions: Option<[(u64, u64); 5]>,
}

const LRU: Contender = Contender::Policy(PolicyKind::Lru);
const ARC: Contender = Contender::Policy(PolicyKind::Arc(GhostHits::T1));
const ARC_T2: Contender = Contender::Policy(PolicyKind::Arc(GhostHits::T2));
const ARC_CANONICAL: Contender = Contender::Policy(PolicyKind::Arc(GhostHits::Canonical));
const SLRU_20: Contender = Contender::Policy(PolicyKind::Slru { protected_pct: 20 });
const SLRU_50: Contender = Contender::Policy(PolicyKind::Slru { protected_pct: 50 });
const ASLRU: Contender = Contender::Policy(PolicyKind::Aslru);
const YLRU: Contender = Contender::Policy(PolicyKind::Ylru);
const S3_FIFO: Contender =
    Contender::Policy(PolicyKind::S3Fifo(S3FifoOptions { small_pct: 30, threshold: 1, leaf_only: true }));
const OPT: Contender = Contender::Opt;

const fn row(policy: Contender, hits: [u64; 5]) -> Row {
    Row { policy, hits, evictions: None }
}

const TRACES: [TraceRows; 5] = [
    // kvo_synth(400, 7)
    TraceRows {
        fingerprint: 0x3f0f_58a6_b2df_40e9,
        capacities: [32, 64, 128, 256, 512],
        rows: [
            Row {
                policy: LRU,
                hits: [626, 1_012, 1_621, 2_378, 3_096],
                evictions: Some([
                    (6_367, 0x2e19_22ff_7520_9036),
                    (6_878, 0x6b9b_73b2_1fcb_3312),
                    (6_205, 0xaf89_10ac_93c6_dcab),
                    (5_320, 0x683b_dfc1_c42b_f66a),
                    (4_346, 0x6b5d_02cb_27e0_ec1f),
                ]),
            },
            Row {
                policy: ARC,
                hits: [607, 1_040, 1_664, 2_473, 3_102],
                evictions: Some([
                    (6_386, 0x6f44_1d77_daa5_cffc),
                    (6_846, 0xb958_cfaa_14e0_0d32),
                    (6_138, 0x2cd4_5709_0733_46b9),
                    (5_225, 0xd5fe_27e8_bd9d_b280),
                    (4_319, 0x0798_ff9c_6c74_a504),
                ]),
            },
            row(ARC_T2, [627, 1_150, 2_053, 2_695, 3_299]),
            row(ARC_CANONICAL, [626, 1_231, 1_962, 2_695, 3_269]),
            row(SLRU_20, [609, 1_128, 1_860, 2_553, 3_214]),
            row(SLRU_50, [602, 1_161, 2_118, 2_667, 3_122]),
            row(ASLRU, [629, 1_236, 2_112, 2_686, 3_238]),
            row(YLRU, [645, 1_236, 2_171, 2_806, 3_332]),
            row(S3_FIFO, [612, 1_105, 2_143, 2_772, 3_292]),
            row(OPT, [1_912, 2_585, 3_248, 3_828, 4_255]),
        ],
    },
    // kvo_synth(4000, 42)
    TraceRows {
        fingerprint: 0x5b00_e221_975d_7d3b,
        capacities: [207, 1_039, 2_078, 4_157, 10_394],
        rows: [
            row(LRU, [17_579, 31_317, 39_492, 46_199, 55_946]),
            row(ARC, [20_439, 29_225, 36_966, 46_580, 55_948]),
            row(ARC_T2, [21_542, 31_578, 37_901, 46_969, 56_465]),
            row(ARC_CANONICAL, [21_678, 31_222, 38_648, 47_056, 56_465]),
            row(SLRU_20, [20_511, 31_919, 39_448, 46_364, 56_075]),
            row(SLRU_50, [21_944, 30_584, 37_729, 46_911, 55_954]),
            row(ASLRU, [21_648, 31_738, 38_601, 47_269, 56_119]),
            row(YLRU, [22_105, 31_982, 39_110, 48_400, 56_156]),
            row(S3_FIFO, [22_094, 31_145, 37_008, 45_740, 55_644]),
            row(OPT, [31_799, 46_068, 52_110, 56_929, 57_772]),
        ],
    },
    // Mooncake, conversation_trace.jsonl
    TraceRows {
        fingerprint: 0x3b17_7461_6d9d_00d3,
        capacities: [1_827, 9_139, 18_279, 36_558, 91_395],
        rows: [
            row(LRU, [15_136, 56_479, 80_466, 99_632, 104_759]),
            row(ARC, [17_022, 52_912, 80_081, 91_307, 104_633]),
            row(ARC_T2, [22_317, 61_176, 82_672, 92_844, 104_633]),
            row(ARC_CANONICAL, [18_793, 60_545, 81_908, 92_412, 104_633]),
            row(SLRU_20, [17_309, 59_688, 83_075, 97_879, 104_631]),
            row(SLRU_50, [16_789, 51_327, 79_206, 94_531, 104_633]),
            row(ASLRU, [22_290, 61_577, 82_974, 98_845, 104_631]),
            row(YLRU, [27_159, 61_626, 84_524, 99_055, 104_633]),
            row(S3_FIFO, [22_035, 57_927, 79_445, 93_597, 104_633]),
            row(OPT, [71_078, 105_710, 105_710, 105_710, 105_710]),
        ],
    },
    // Mooncake, synthetic_trace.jsonl
    TraceRows {
        fingerprint: 0x8b19_b62c_86af_7fd6,
        capacities: [439, 2_196, 4_392, 8_784, 21_962],
        rows: [
            row(LRU, [4_644, 19_087, 31_973, 47_907, 71_763]),
            row(ARC, [4_687, 17_734, 32_939, 49_425, 73_487]),
            row(ARC_T2, [4_889, 20_029, 33_454, 50_205, 73_549]),
            row(ARC_CANONICAL, [5_066, 20_137, 32_054, 49_638, 73_549]),
            row(SLRU_20, [4_558, 18_895, 31_079, 49_401, 72_755]),
            row(SLRU_50, [4_539, 19_170, 31_312, 49_614, 73_487]),
            row(ASLRU, [5_114, 19_741, 33_019, 49_562, 72_777]),
            row(YLRU, [4_978, 19_851, 33_256, 50_205, 72_286]),
            row(S3_FIFO, [5_157, 19_958, 32_411, 50_410, 73_551]),
            row(OPT, [22_600, 48_215, 61_707, 74_100, 77_953]),
        ],
    },
    // weka512.jsonl.gz
    TraceRows {
        fingerprint: 0xba0e_e44b_f9e0_bc3b,
        capacities: [668, 3_340, 6_680, 13_360, 33_400],
        rows: [
            row(LRU, [309_273, 1_430_153, 1_679_928, 1_735_163, 1_735_176]),
            row(ARC, [297_824, 1_406_518, 1_661_861, 1_733_541, 1_733_118]),
            row(ARC_T2, [341_015, 1_422_626, 1_670_675, 1_734_119, 1_733_258]),
            row(ARC_CANONICAL, [354_601, 1_416_518, 1_669_129, 1_734_119, 1_733_258]),
            row(SLRU_20, [343_274, 1_429_568, 1_679_547, 1_735_163, 1_735_176]),
            row(SLRU_50, [358_364, 1_422_207, 1_678_712, 1_735_163, 1_735_175]),
            row(ASLRU, [362_791, 1_416_706, 1_668_942, 1_735_163, 1_735_176]),
            row(YLRU, [398_297, 1_411_987, 1_678_620, 1_734_219, 1_735_175]),
            row(S3_FIFO, [382_350, 1_426_850, 1_677_336, 1_734_261, 1_735_168]),
            row(OPT, [815_595, 1_595_073, 1_726_969, 1_735_182, 1_735_182]),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn result(hits: u64, evictions: u64) -> PolicyResult {
        PolicyResult { hits, evictions, ..PolicyResult::empty(LRU, 207) }
    }

    #[test]
    fn cells_are_found_and_compared() {
        let trace = crate::kvo_synth(4000, 42).fingerprint();
        let cell = Golden::of(trace, LRU, 207).unwrap();
        assert!(cell.agrees(&result(17_579, 1)));
        assert!(!cell.agrees(&result(17_580, 1)));
        assert_eq!(Golden::of(trace, LRU, 208), None);
        assert_eq!(Golden::of(Fingerprint::EMPTY, LRU, 207), None);
    }

    #[test]
    fn published_evictions_count_too() {
        let cell = all().find(|cell| cell.evictions.is_some()).unwrap();
        assert!(!cell.agrees(&result(cell.hits, 0)));
    }
}
