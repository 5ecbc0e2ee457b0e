//! What a request may ask for.

use kvo_core::{TierFilter, TransferClass};

/// How one request is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestParams {
    /// Tokens that are loaded at most; without, as many as there are.
    pub load_tokens_max: Option<u32>,
    /// Tokens, from the first on, whose chunks are stored at most; without, all.
    pub store_tokens_max: Option<u32>,
    /// Which secondary tiers may serve it.
    pub tier_filter: TierFilter,
    /// How urgent its loads are.
    pub load_class: TransferClass,
    /// Mixed into the name of every chunk, so that requests with another salt, or none, share nothing with it.
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
            salt: None,
            skip_reading: false,
            prompt_only: false,
        }
    }
}
