//! Published figures of policies under model R, to compare with integer by integer.
//!
//! The rows of `lru` and `arc` agree with vLLM 0.33's CPU offload manager; those of `arc:ghost-hits=t2` come from one
//! other implementation.

use kvo_policies::{GhostHits, PolicyKind};

use crate::{Fingerprint, PolicyResult};

/// What is published of one cell: a policy at a capacity on a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Golden {
    /// The trace's fingerprint.
    pub trace: u64,
    /// The policy.
    pub policy: PolicyKind,
    /// Slots.
    pub capacity: u32,
    /// Prefix hits.
    pub hits: u64,
    /// Number of evictions and the fingerprint of their order, where they are published.
    pub evictions: Option<(u64, u64)>,
}

impl Golden {
    /// The published figures of a cell.
    pub fn of(trace: Fingerprint, policy: PolicyKind, capacity: u32) -> Option<Self> {
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
    rows: [Row; 3],
}

struct Row {
    policy: PolicyKind,
    hits: [u64; 5],
    evictions: Option<[(u64, u64); 5]>,
}

const LRU: PolicyKind = PolicyKind::Lru;
const ARC: PolicyKind = PolicyKind::Arc(GhostHits::T1);
const ARC_T2: PolicyKind = PolicyKind::Arc(GhostHits::T2);

const fn row(policy: PolicyKind, hits: [u64; 5]) -> Row {
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
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn result(hits: u64, evictions: u64) -> PolicyResult {
        PolicyResult {
            policy: String::new(),
            capacity: 207,
            requests: 0,
            accesses: 0,
            hits,
            inserts: 0,
            evictions,
            eviction_order: Fingerprint::EMPTY,
        }
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
