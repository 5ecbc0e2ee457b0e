//! The shape of a model, and the models that need no file.

use crate::ModelError;

/// The shape of a Llama-like transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Tokens there are.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width between the two products of the feed-forward part.
    pub feed_forward: usize,
    /// Base of the rotary embedding.
    pub rope_base: f64,
    /// Added to the mean square before its root.
    pub norm_epsilon: f32,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// By layer: how many tokens it attends to, the token itself among them; `None` for all.
    pub windows: Vec<Option<u32>>,
}

/// Layers that share a block table: those that attend to everything, or to equal windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// How many tokens its layers attend to; `None` for all.
    pub window: Option<u32>,
    /// Its layers, ascending.
    pub layers: Vec<usize>,
}

impl ModelConfig {
    /// Two layers of width 32 over bytes, with the embedding as head: for tests.
    pub fn tiny() -> Self {
        Self {
            vocabulary: 256,
            hidden: 32,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            feed_forward: 64,
            rope_base: 10_000.0,
            norm_epsilon: 1e-5,
            tied: true,
            windows: vec![None; 2],
        }
    }

    /// As [`tiny`](Self::tiny) with four layers, of which the first and the third attend to 24 tokens only; with a
    /// head of its own.
    pub fn window() -> Self {
        Self { tied: false, windows: vec![Some(24), None, Some(24), None], ..Self::tiny() }
    }

    /// Six layers of width 128 over bytes, with a head of its own: large enough to take its time.
    pub fn small() -> Self {
        Self {
            hidden: 128,
            heads: 8,
            kv_heads: 2,
            head_dim: 16,
            feed_forward: 320,
            tied: false,
            windows: vec![None; 6],
            ..Self::tiny()
        }
    }

    /// Layers.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Width of all keys, or values, of a token in a layer.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The KV cache groups: first the layers that attend to everything, then those of each window, narrow to wide.
    pub fn groups(&self) -> Vec<LayerGroup> {
        let mut windows = self.windows.clone();
        windows.sort_unstable();
        windows.dedup();
        let layers_of = |window: Option<u32>| {
            (0..self.layers()).filter(|&layer| self.windows[layer] == window).collect::<Vec<_>>()
        };
        windows.into_iter().map(|window| LayerGroup { window, layers: layers_of(window) }).collect()
    }

    /// Checks that it is a model.
    ///
    /// # Errors
    /// [`ModelError::Zero`] and [`ModelError::Shape`] name what is not sound.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        for (field, value) in [
            ("vocabulary", self.vocabulary),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("feed_forward", self.feed_forward),
            ("windows", self.windows.len()),
        ] {
            if value == 0 {
                return Err(ModelError::Zero { field });
            }
        }
        if self.windows.contains(&Some(0)) {
            return Err(ModelError::Zero { field: "windows" });
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(ModelError::Shape { field: "heads", value: self.heads });
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ModelError::Shape { field: "head_dim", value: self.head_dim });
        }
        let width = self.heads.checked_mul(self.head_dim);
        if width.is_none_or(|width| u32::try_from(width).is_err()) {
            return Err(ModelError::Shape { field: "head_dim", value: self.head_dim });
        }
        if u32::try_from(self.vocabulary).is_err() {
            return Err(ModelError::Shape { field: "vocabulary", value: self.vocabulary });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_equal_windows_are_one_group() {
        let full = LayerGroup { window: None, layers: vec![1, 3] };
        let narrow = LayerGroup { window: Some(24), layers: vec![0, 2] };
        assert_eq!(ModelConfig::window().groups(), [full, narrow]);
        assert_eq!(ModelConfig::tiny().groups(), [LayerGroup { window: None, layers: vec![0, 1] }]);
    }

    #[test]
    fn what_is_no_model_is_named() {
        let check = |change: fn(&mut ModelConfig), expected: ModelError| {
            let mut config = ModelConfig::tiny();
            change(&mut config);
            assert_eq!(config.check().unwrap_err().to_string(), expected.to_string());
        };
        check(|config| config.hidden = 0, ModelError::Zero { field: "hidden" });
        check(|config| config.windows.clear(), ModelError::Zero { field: "windows" });
        check(|config| config.windows[0] = Some(0), ModelError::Zero { field: "windows" });
        check(|config| config.kv_heads = 3, ModelError::Shape { field: "heads", value: 4 });
        check(|config| config.head_dim = 7, ModelError::Shape { field: "head_dim", value: 7 });
    }
}
