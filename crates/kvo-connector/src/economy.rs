//! Whether loading is worth it: what it costs beside computing.

use std::time::Duration;

/// What loads and compute cost, as an engine has measured them. Then a match ends where loading stops being worth it: the
/// rest is computed, which may well be all or nothing.
///
/// Costs are those of one request by itself: what is loaded comes first, and then the rest is computed. A chunk of a lower
/// tier has to be brought up first. Only full attention is cut anywhere; with windows or states a match is taken whole or
/// not at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Economy {
    /// Tokens that the engine computes in a second at the beginning of a context.
    pub prefill_tokens_per_s: f64,
    /// Tokens of context that make the next token twice as dear as the first, as attention grows with the context; infinite
    /// if it does not.
    pub context_tokens: f64,
    /// Tokens, over all groups, that are loaded from the primary tier in a second.
    pub load_tokens_per_s: f64,
    /// Tokens that are brought up from lower tiers in a second.
    pub promote_tokens_per_s: f64,
    /// What a load costs however short it is.
    pub load_latency: Duration,
}

impl Economy {
    /// Whether every rate is a number above zero.
    pub(crate) fn zero_field(&self) -> Option<&'static str> {
        let rates = [
            ("economy.prefill_tokens_per_s", self.prefill_tokens_per_s),
            ("economy.context_tokens", self.context_tokens),
            ("economy.load_tokens_per_s", self.load_tokens_per_s),
            ("economy.promote_tokens_per_s", self.promote_tokens_per_s),
        ];
        rates.into_iter().find(|(_, rate)| rate.is_nan() || *rate <= 0.0).map(|(field, _)| field)
    }

    /// Seconds to compute the tokens `from..to` of a context.
    fn compute_s(&self, from: u32, to: u32) -> f64 {
        let (from, to) = (f64::from(from), f64::from(to));
        ((to - from) + (to * to - from * from) / (2.0 * self.context_tokens)) / self.prefill_tokens_per_s
    }

    /// Seconds until all `num_tokens` tokens are there, if of those behind `computed` `loaded` are loaded, `promoted` of them
    /// from lower tiers.
    fn cost_s(&self, computed: u32, loaded: u32, promoted: u32, num_tokens: u32) -> f64 {
        let load_s = if loaded > 0 {
            self.load_latency.as_secs_f64()
                + f64::from(promoted) / self.promote_tokens_per_s
                + f64::from(loaded) / self.load_tokens_per_s
        } else {
            0.0
        };
        load_s + self.compute_s(computed + loaded, num_tokens.max(computed + loaded))
    }

    /// Where loading stops being worth it: one of `ends`, each with the tokens up to there that have to be brought up, or
    /// `computed` if it is not worth it at all. Of ends that cost the same the furthest.
    pub(crate) fn split(
        &self,
        computed: u32,
        num_tokens: u32,
        ends: impl IntoIterator<Item = (u32, u32)>,
    ) -> u32 {
        let mut best = (computed, self.cost_s(computed, 0, 0, num_tokens));
        for (end, promoted) in ends {
            let cost = self.cost_s(computed, end - computed, promoted, num_tokens);
            if cost <= best.1 {
                best = (end, cost);
            }
        }
        best.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A request's life, token by token: what is brought up, what is loaded, what is computed.
    fn simulate(economy: &Economy, computed: u32, num_tokens: u32, end: u32, is_below: &[bool]) -> f64 {
        let mut clock = if end > computed { economy.load_latency.as_secs_f64() } else { 0.0 };
        for token in computed..end {
            if is_below[token as usize] {
                clock += 1.0 / economy.promote_tokens_per_s;
            }
            clock += 1.0 / economy.load_tokens_per_s;
        }
        for token in end..num_tokens {
            clock += (1.0 + (f64::from(token) + 0.5) / economy.context_tokens) / economy.prefill_tokens_per_s;
        }
        clock
    }

    fn economy() -> impl Strategy<Value = Economy> {
        let rate = || (0.0..4.0_f64).prop_map(|log| 10.0_f64.powf(log));
        (rate(), rate(), rate(), rate(), 0..2000_u64).prop_map(
            |(prefill, context, load, promote, latency_ms)| Economy {
                prefill_tokens_per_s: prefill,
                context_tokens: context,
                load_tokens_per_s: load,
                promote_tokens_per_s: promote,
                load_latency: Duration::from_millis(latency_ms),
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_split_is_never_worse_than_all_or_nothing_and_no_other_is_better(
            economy in economy(),
            num_tokens in 1..120_u32,
            computed in 0..120_u32,
            hits in 0..120_u32,
            is_below in prop::collection::vec(any::<bool>(), 120),
        ) {
            let computed = computed.min(num_tokens);
            let end = (computed + hits).min(num_tokens);
            let below = |end: u32| {
                let of = &is_below[computed as usize..end as usize];
                u32::try_from(of.iter().filter(|below| **below).count()).unwrap()
            };
            let ends = (computed + 1..=end).map(|end| (end, below(end)));
            let chosen = economy.split(computed, num_tokens, ends);
            let cost = simulate(&economy, computed, num_tokens, chosen, &is_below);
            for other in computed..=end {
                let other = simulate(&economy, computed, num_tokens, other, &is_below);
                prop_assert!(cost <= other * (1.0 + 1e-9) + 1e-9, "{} of {}..{}", chosen, computed, end);
            }
        }
    }

    #[test]
    fn a_rate_that_is_no_rate_is_named() {
        let economy = Economy {
            prefill_tokens_per_s: 1.0,
            context_tokens: f64::INFINITY,
            load_tokens_per_s: 1.0,
            promote_tokens_per_s: 1.0,
            load_latency: Duration::ZERO,
        };
        assert_eq!(economy.zero_field(), None);
        assert_eq!(
            Economy { load_tokens_per_s: 0.0, ..economy }.zero_field(),
            Some("economy.load_tokens_per_s")
        );
        assert_eq!(
            Economy { context_tokens: f64::NAN, ..economy }.zero_field(),
            Some("economy.context_tokens")
        );
    }
}
