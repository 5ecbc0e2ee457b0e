//! What a request may ask for.

use std::fmt;

use kvo_core::{TierFilter, TransferClass};

/// How one request is served.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestParams {
    /// Tokens that are loaded at most; without, as many as there are.
    pub load_tokens_max: Option<u32>,
    /// Tokens, from the first on, whose chunks are stored at most; without, all.
    pub store_tokens_max: Option<u32>,
    /// Which secondary tiers may serve it.
    pub tier_filter: TierFilter,
    /// How urgent its loads are.
    pub load_class: TransferClass,
    /// A name of whatever changes the model for this request, as the hash of an adapter's weights. Requests with another
    /// one, or none, share nothing with it.
    pub adapter: Option<[u8; 32]>,
    /// A secret of whoever the request is from: requests with another salt, or none, share nothing with it. It goes into
    /// the name of every chunk and is printed nowhere.
    pub salt: Option<[u8; 32]>,
    /// Nothing is loaded for it; what it computes is stored all the same.
    pub skip_reading: bool,
    /// Only chunks of its prompt are stored.
    pub prompt_only: bool,
}

impl Default for RequestParams {
    /// Everything, from every tier, as a running step waits for it.
    fn default() -> Self {
        Self {
            load_tokens_max: None,
            store_tokens_max: None,
            tier_filter: TierFilter::all(),
            load_class: TransferClass::Demand,
            adapter: None,
            salt: None,
            skip_reading: false,
            prompt_only: false,
        }
    }
}

impl fmt::Debug for RequestParams {
    /// All but the salt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            load_tokens_max,
            store_tokens_max,
            tier_filter,
            load_class,
            adapter,
            salt,
            skip_reading,
            prompt_only,
        } = self;
        f.debug_struct("RequestParams")
            .field("load_tokens_max", load_tokens_max)
            .field("store_tokens_max", store_tokens_max)
            .field("tier_filter", tier_filter)
            .field("load_class", load_class)
            .field("adapter", adapter)
            .field("salt", &salt.map(|_| Hidden))
            .field("skip_reading", skip_reading)
            .field("prompt_only", prompt_only)
            .finish()
    }
}

/// A secret, as it is printed.
struct Hidden;

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_is_not_printed() {
        let params = RequestParams { salt: Some([0xab; 32]), ..RequestParams::default() };
        let text = format!("{params:?} {params:#?}");
        assert!(text.contains("salt: Some(..)"), "{text}");
        assert!(!text.contains("171") && !text.contains("ab, "), "{text}");
    }
}
