//! A step's compute as kernels on the device's stream, of a layer or some, each of which says what it reads and writes.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use kvo_core::BlockId;
use kvo_cuda::{Accesses, ComputeStream, DeviceMemory};
use rayon::ThreadPool;

use super::BlockTable;
use crate::{
    EngineError, KvCaches, LayerGroup, Model,
    kv::{NUMBER_BYTES, PLANES},
    model::{Activations, Context, Row},
};

/// What a step computes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    rows: Vec<Row>,
    spans: Vec<Span>,
    /// Rows whose logits are wanted.
    sampled: Vec<usize>,
}

/// Rows of one request.
#[derive(Debug)]
struct Span {
    rows: Range<usize>,
    /// By group.
    pages: Vec<SpanPages>,
}

/// Where the keys and values of a span are in one group.
#[derive(Debug)]
struct SpanPages {
    /// The position of the first token that is read.
    first_position: u32,
    /// What its rows attend to, themselves included, in the order of positions.
    reads: Vec<Piece>,
    /// Its own tokens.
    writes: Vec<Piece>,
}

/// Neighbouring tokens in a block.
#[derive(Clone, Copy, Debug)]
struct Piece {
    block: BlockId,
    first: u32,
    tokens: u32,
}

impl Batch {
    /// Adds `tokens[computed]` of a request. `wants_logits` asks for those behind the last one.
    pub(super) fn push(
        &mut self,
        caches: &KvCaches,
        tokens: &[u32],
        computed: Range<usize>,
        tables: &[BlockTable],
        wants_logits: bool,
    ) {
        let start = self.rows.len();
        let positions = position(computed.start)..position(computed.end);
        let rows = tokens[computed].iter().zip(positions.clone());
        self.rows.extend(rows.map(|(&token, position)| Row { token, position }));
        let pages = |(group, table): (&LayerGroup, &BlockTable)| {
            let first = group.window.map_or(0, |window| (positions.start + 1).saturating_sub(window));
            SpanPages {
                first_position: first,
                reads: pieces(caches.block_tokens(), table, first..positions.end),
                writes: pieces(caches.block_tokens(), table, positions.clone()),
            }
        };
        let pages = caches.groups().iter().zip(tables).map(pages).collect();
        self.spans.push(Span { rows: start..self.rows.len(), pages });
        if wants_logits {
            self.sampled.push(self.rows.len() - 1);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds what a layer reads and writes.
    fn add_accesses(&self, caches: &KvCaches, (layer, group): (usize, usize), accesses: &mut Accesses) {
        let range = |piece: &Piece, plane| {
            let start = piece.address(caches, layer, plane);
            start..start + u64::from(piece.tokens) * caches.token_bytes()
        };
        for pages in self.spans.iter().map(|span| &span.pages[group]) {
            for plane in 0..PLANES as usize {
                accesses.reads.extend(pages.reads.iter().map(|piece| range(piece, plane)));
                accesses.writes.extend(pages.writes.iter().map(|piece| range(piece, plane)));
            }
        }
    }
}

impl Piece {
    fn address(&self, caches: &KvCaches, layer: usize, plane: usize) -> u64 {
        caches.page_address(layer, plane, self.block) + u64::from(self.first) * caches.token_bytes()
    }

    fn bytes(&self, caches: &KvCaches) -> usize {
        self.tokens as usize * usize::try_from(caches.token_bytes()).expect("it is in memory")
    }
}

/// Cuts positions at the borders of blocks.
fn pieces(block_tokens: u32, table: &BlockTable, positions: Range<u32>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut next = positions.start;
    while next < positions.end {
        let (index, first) = (next / block_tokens, next % block_tokens);
        let tokens = (block_tokens - first).min(positions.end - next);
        let block = table[index as usize].expect("a block stays until nothing attends to it");
        pieces.push(Piece { block, first, tokens });
        next += tokens;
    }
    pieces
}

fn position(index: usize) -> u32 {
    u32::try_from(index).expect("a request fits the blocks")
}

/// What the kernels of a step share.
#[derive(Debug, Default)]
struct Shared {
    activations: Activations,
    keys: Vec<f32>,
    values: Vec<f32>,
    bytes: Vec<u8>,
    logits: Vec<f32>,
}

/// Ranges up to which layers share a kernel. Launches cost time; so does a kernel that says too much, where a detector
/// holds it to that.
const RANGES_MAX: usize = 64;

/// Launches steps.
#[derive(Debug)]
pub(super) struct Forward {
    model: Arc<Model>,
    caches: Arc<KvCaches>,
    threads: Option<Arc<ThreadPool>>,
    /// By layer.
    groups: Vec<usize>,
    shared: Arc<Mutex<Shared>>,
    /// Layers that are to be launched, and what they touch.
    pending: (Range<usize>, Accesses),
}

impl Forward {
    pub(super) fn new(model: Arc<Model>, caches: Arc<KvCaches>, threads: usize) -> Result<Self, EngineError> {
        let pool = || rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let threads = if threads > 1 { Some(Arc::new(pool()?)) } else { None };
        let group_of = |layer: usize| {
            let group = caches.groups().iter().position(|group| group.layers.contains(&layer));
            group.expect("each layer is in a group")
        };
        let groups = (0..model.config().layers()).map(group_of).collect();
        Ok(Self {
            model,
            caches,
            threads,
            groups,
            shared: Arc::default(),
            pending: (0..0, Accesses::default()),
        })
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.pending = (0..0, Accesses::default());
    }

    /// Adds the next layer. Some layers go onto the stream together: [`flush`](Self::flush) puts all on it that are
    /// not.
    pub(super) fn add_layer(
        &mut self,
        stream: &ComputeStream,
        batch: &Arc<Batch>,
        layer: usize,
    ) -> Result<(), EngineError> {
        let (layers, accesses) = &mut self.pending;
        assert_eq!(layers.end, layer, "layers come in their order");
        layers.end += 1;
        batch.add_accesses(&self.caches, (layer, self.groups[layer]), accesses);
        if accesses.reads.len() + accesses.writes.len() >= RANGES_MAX {
            self.flush(stream, batch)?;
        }
        Ok(())
    }

    /// Puts the layers on the stream that were added, and the output head behind the last one.
    pub(super) fn flush(&mut self, stream: &ComputeStream, batch: &Arc<Batch>) -> Result<(), EngineError> {
        let (layers, accesses) = &mut self.pending;
        let (layers, accesses) = (layers.clone(), std::mem::take(accesses));
        self.pending.0 = layers.end..layers.end;
        if layers.is_empty() {
            return Ok(());
        }
        let (model, caches, batch) = (Arc::clone(&self.model), Arc::clone(&self.caches), Arc::clone(batch));
        let (threads, shared) = (self.threads.clone(), Arc::clone(&self.shared));
        let layers: Vec<(usize, usize)> = layers.map(|layer| (layer, self.groups[layer])).collect();
        stream.launch_with(accesses, move |memory| {
            let shared = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
            let threads = threads.as_deref();
            for (layer, group) in layers {
                if layer == 0 {
                    model.begin(&batch.rows, &mut shared.activations);
                }
                compute_layer(&model, &caches, &batch, (layer, group), shared, memory, threads);
                if layer + 1 == model.config().layers() {
                    shared.logits = model.logits(&batch.sampled, &mut shared.activations, threads);
                }
            }
        })?;
        Ok(())
    }

    /// The logits of the last step, `[sampled][token]`, once its compute is over.
    pub(super) fn take_logits(&self) -> Vec<f32> {
        std::mem::take(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner).logits)
    }
}

fn compute_layer(
    model: &Model,
    caches: &KvCaches,
    batch: &Batch,
    (layer, group): (usize, usize),
    shared: &mut Shared,
    memory: &DeviceMemory,
    threads: Option<&ThreadPool>,
) {
    let Shared { activations, keys, values, bytes, .. } = shared;
    model.project(layer, activations, threads);
    for span in &batch.spans {
        let pages = &span.pages[group];
        for (plane, rows) in [&activations.key, &activations.value].into_iter().enumerate() {
            write_pages(
                caches,
                memory,
                (layer, plane),
                &pages.writes,
                &rows[of_rows(model, &span.rows)],
                bytes,
            );
        }
    }
    for span in &batch.spans {
        let pages = &span.pages[group];
        for (plane, into) in [&mut *keys, &mut *values].into_iter().enumerate() {
            read_pages(caches, memory, (layer, plane), &pages.reads, into, bytes);
        }
        let first_position = pages.first_position;
        let context = Context { rows: span.rows.clone(), first_position, keys, values };
        model.attend(layer, &context, activations, threads);
    }
    model.finish_layer(layer, activations, threads);
}

fn of_rows(model: &Model, rows: &Range<usize>) -> Range<usize> {
    let kv_dim = model.config().kv_dim();
    rows.start * kv_dim..rows.end * kv_dim
}

fn write_pages(
    caches: &KvCaches,
    memory: &DeviceMemory,
    (layer, plane): (usize, usize),
    pieces: &[Piece],
    mut numbers: &[f32],
    bytes: &mut Vec<u8>,
) {
    for piece in pieces {
        let (of_piece, rest) = numbers.split_at(piece.bytes(caches) / NUMBER_BYTES);
        numbers = rest;
        bytes.clear();
        bytes.extend(of_piece.iter().flat_map(|number| number.to_le_bytes()));
        let written = memory.write(piece.address(caches, layer, plane), bytes);
        written.expect("the arena was there at launch, and stays");
    }
}

fn read_pages(
    caches: &KvCaches,
    memory: &DeviceMemory,
    (layer, plane): (usize, usize),
    pieces: &[Piece],
    numbers: &mut Vec<f32>,
    bytes: &mut Vec<u8>,
) {
    numbers.clear();
    for piece in pieces {
        bytes.resize(piece.bytes(caches), 0);
        let read = memory.read(piece.address(caches, layer, plane), bytes);
        read.expect("the arena was there at launch, and stays");
        let (whole, _) = bytes.as_chunks::<NUMBER_BYTES>();
        numbers.extend(whole.iter().map(|number| f32::from_le_bytes(*number)));
    }
}
