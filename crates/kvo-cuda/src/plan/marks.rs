//! Plans by layer: which layers are gathered into a part.

use super::prepared::Prepared;
use crate::{BlockLayout, GroupLayout, layout::strips::Table};

/// Where the parts of a plan by layer end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerMarks {
    /// Numbers of copies, ascending: what a [`Transfer`](kvo_core::Transfer) takes as its marks.
    pub ends: Vec<u32>,
    /// The last layer of each part, ascending. A part has every layer behind the last one of the part before.
    pub last_layers: Vec<u32>,
}

impl LayerMarks {
    /// The mark to wait for before `layer` is computed, or `None` if no copy of the plan is of it or a later layer.
    pub fn mark_of(&self, layer: u32) -> Option<u32> {
        let nth = self.last_layers.partition_point(|&last| last < layer);
        (nth < self.last_layers.len()).then(|| u32::try_from(nth).expect("there are fewer marks than layers"))
    }

    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.last_layers.clear();
    }

    pub(super) fn push(&mut self, num_ops: usize, last_layer: u32) {
        self.ends.push(u32::try_from(num_ops).expect("a list of so many copies does not fit memory"));
        self.last_layers.push(last_layer);
    }
}

/// One layer of a group.
#[derive(Clone, Copy, Debug)]
struct Layer {
    number: u32,
    /// Its stretches end here among those of the group.
    end: usize,
    /// Bytes that are copied of it for a block.
    block_bytes: u64,
}

/// Goes through the layers of all groups at once, part by part.
#[derive(Clone, Debug)]
pub(super) struct ByLayer {
    /// The layers of each group, ascending.
    layers: Box<[Vec<Layer>]>,
    /// How many layers of each group have been in a part.
    next: Box<[usize]>,
    /// Where the stretches of each group begin that are in the part.
    starts: Box<[usize]>,
    /// Blocks of each group in the plan.
    num_blocks: Box<[u64]>,
    /// Bytes of the plan that have not been in a part.
    left_bytes: u64,
    /// The stretches of each group in the part.
    tables: Box<[Table]>,
}

impl ByLayer {
    pub(super) fn new(layout: &BlockLayout) -> Self {
        let num_groups = layout.groups().len();
        Self {
            layers: layout.groups().iter().map(layers).collect(),
            next: vec![0; num_groups].into(),
            starts: vec![0; num_groups].into(),
            num_blocks: vec![0; num_groups].into(),
            left_bytes: 0,
            tables: layout.groups().iter().map(|group| Table::with_room(group.strips().len())).collect(),
        }
    }

    /// The stretches of each group in the part.
    pub(super) fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Begins with the first layers of the groups that are in the plan.
    pub(super) fn start(&mut self, layout: &BlockLayout, prepared: &Prepared) {
        self.num_blocks.copy_from_slice(prepared.num_blocks());
        self.left_bytes = 0;
        for (nth, group) in layout.groups().iter().enumerate() {
            self.next[nth] = if self.num_blocks[nth] == 0 { self.layers[nth].len() } else { 0 };
            self.left_bytes =
                self.left_bytes.saturating_add(bytes(self.num_blocks[nth], group.block_bytes()));
        }
    }

    /// Gathers the next layers into the tables until they have `bytes_min` and what is left has as many, or nothing is
    /// left. Returns the last of them.
    pub(super) fn next_part(&mut self, layout: &BlockLayout, bytes_min: u64) -> Option<u32> {
        let mut last = self.next_layer()?;
        for nth in 0..self.starts.len() {
            self.starts[nth] = self.strips_before(nth);
        }
        let mut part_bytes = self.take_layer(last);
        while part_bytes < bytes_min || self.left_bytes < bytes_min {
            let Some(layer) = self.next_layer() else { break };
            last = layer;
            part_bytes = part_bytes.saturating_add(self.take_layer(layer));
        }
        for (nth, group) in layout.groups().iter().enumerate() {
            let strips = &group.strips()[self.starts[nth]..self.strips_before(nth)];
            self.tables[nth].fill(strips, group.blocks_per_chunk());
        }
        Some(last)
    }

    /// Puts a layer into the part, of every group that has it, and returns its bytes.
    fn take_layer(&mut self, layer: u32) -> u64 {
        let mut taken = 0_u64;
        for (nth, next) in self.next.iter_mut().enumerate() {
            if let Some(of_group) = self.layers[nth].get(*next).filter(|of_group| of_group.number == layer) {
                taken = taken.saturating_add(bytes(self.num_blocks[nth], of_group.block_bytes));
                *next += 1;
            }
        }
        self.left_bytes = self.left_bytes.saturating_sub(taken);
        taken
    }

    /// How many stretches of a group the layers have that were taken.
    fn strips_before(&self, group: usize) -> usize {
        self.next[group].checked_sub(1).map_or(0, |nth| self.layers[group][nth].end)
    }

    /// The least layer that has not been in a part.
    fn next_layer(&self) -> Option<u32> {
        let next = self.layers.iter().zip(&self.next).filter_map(|(layers, &next)| layers.get(next));
        next.map(|layer| layer.number).min()
    }
}

/// The layers of a group.
fn layers(group: &GroupLayout) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    for (end, strip) in (1..).zip(group.strips()) {
        match layers.last_mut() {
            Some(layer) if layer.number == strip.layer => {
                layer.end = end;
                layer.block_bytes += strip.bytes;
            }
            _ => layers.push(Layer { number: strip.layer, end, block_bytes: strip.bytes }),
        }
    }
    layers
}

fn bytes(num_blocks: u64, block_bytes: u64) -> u64 {
    num_blocks.saturating_mul(block_bytes)
}
