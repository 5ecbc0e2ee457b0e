//! What can be loaded, and into which blocks.

use hashbrown::HashMap;
use kvo_core::{
    BlockId, GroupIdx, LoadError, LoadJob, LookupResult, OffloadKey, OffloadManager, RequestContext,
    RequestError, RequestId, SlotId,
};

use super::{Connector, Pause, step::group_idx};
use crate::{
    ConnectorError, CopyId, Economy,
    copies::{Copies, OpenCopy},
    matching::{Boundary, Finder, Found, Wish, blocks_needed, converge, needed},
    options::{ConnectorOptions, GroupKind, GroupOptions},
    plan::CopyPlan,
    request::{Data, Match, Request},
};

/// What a match has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixMatch {
    /// So many tokens can be loaded behind those that are computed, in this step: they are pinned until it ends. May be 0.
    Loadable(u32),
    /// Chunks are on their way, or a tier is still looking: ask again in a later step.
    AskAgain,
}

impl<M: OffloadManager> Connector<M> {
    /// How many tokens of a request can be loaded behind the `computed` ones whose KV the GPU has, in every group as far as
    /// the group needs it. Changes no recency; may bring chunks up from lower tiers.
    ///
    /// Together they end with whole blocks in every group, but for the last token of the request, which is left to be
    /// computed if [`recompute_last`](crate::ConnectorOptions::recompute_last) says so, though its block is loaded.
    ///
    /// # Errors
    /// [`ConnectorError::Request`], [`ConnectorError::Loading`], [`ConnectorError::TooManyTokens`] if more are computed than
    /// there are, or [`ConnectorError::Spoilt`] if more are than a load has left.
    pub fn match_prefix(&mut self, id: RequestId, computed: u32) -> Result<PrefixMatch, ConnectorError> {
        let request = self.requests.get_mut(&id).ok_or(RequestError::Unknown { req: id })?;
        let num_tokens = request.num_tokens;
        if !request.loading.is_empty() {
            return Err(ConnectorError::Loading { req: id });
        }
        if computed > num_tokens {
            return Err(ConnectorError::TooManyTokens { req: id, computed, num_tokens });
        }
        request.check_good(computed)?;
        request.matched = None;
        request.claim_data(computed);
        let is_outdated = request.data == Data::Outdated;
        let may_read = !request.params.skip_reading && !request.reads_no_more && !is_outdated;
        if !may_read || self.is_flushing || self.pause != Pause::None {
            return Ok(PrefixMatch::Loadable(0));
        }
        let wish = Wish {
            computed,
            limit: computed.saturating_add(request.params.load_tokens_max.unwrap_or(u32::MAX)),
            num_tokens,
            recompute_last: self.options.recompute_last,
            step: self.step_tokens,
        };
        let groups = &self.options.groups;
        let now = self.clock.now();
        let since = *request.asks_since.get_or_insert(now);
        let is_patient = now.saturating_sub(since) < self.options.lookup_patience;
        if let Some((of, key)) = request.waits_for.take()
            && of == computed
            && is_patient
            && !self.copies.is_lost(&key)
            && matches!(
                self.manager.lookup(&mut request.context, &key),
                LookupResult::HitPending | LookupResult::Retry
            )
        {
            // One chunk is enough to know that it asks too early: its others are many.
            request.waits_for = Some((computed, key));
            self.stats.asked_again += 1;
            return Ok(PrefixMatch::AskAgain);
        }
        let Request { context, groups: states, .. } = request;
        let keys = states.iter().map(|state| state.keys.as_slice()).collect();
        let mut finder = InTiers {
            manager: &mut self.manager,
            copies: &self.copies,
            context,
            keys,
            groups,
            known: HashMap::new(),
            end: wish.end_max(),
            is_patient,
            gave_up: false,
        };
        let mut boundary = converge(groups, &wish, &mut finder);
        if let (Some(economy), Some(found)) = (&self.options.economy, boundary) {
            boundary = worth(economy, &self.options, &wish, found, &mut finder);
        }
        let gave_up = finder.gave_up;
        if let Some((group, chunk)) = boundary.and_then(|boundary| boundary.later) {
            request.waits_for = Some((computed, request.groups[group].keys[chunk]));
            self.stats.asked_again += 1;
            return Ok(PrefixMatch::AskAgain);
        }
        self.stats.patience_ended += u64::from(gave_up);
        request.asks_since = None;
        let Some(boundary) = boundary else { return Ok(PrefixMatch::Loadable(0)) };
        request.matched = Some(Match { wish, boundary });
        self.matched.push(id);
        self.stats.matches += 1;
        self.stats.tokens_matched += u64::from(boundary.usable - computed);
        Ok(PrefixMatch::Loadable(boundary.usable - computed))
    }

    /// Blocks were allocated for all that the request's match of this step has found: the tables of all groups, from the
    /// first token on, with nothing where the engine has no block. The load is part of the next plan. Until it is over, or
    /// has failed, the request is not matched and nothing of it is stored, and what it computes is
    /// [behind the load](super::Scheduled::computed), layer by layer.
    ///
    /// Not called, a match is forgotten at the end of the step.
    ///
    /// Gives the load's first copy. If it has [several](crate::ConnectorOptions::load_chunks_max), they are numbered on from
    /// that, and the last one to be reported has the outcome of all.
    ///
    /// # Errors
    /// [`ConnectorError::Request`]; [`ConnectorError::NoMatch`] if there is none of this step and since the last reset, or it
    /// has found nothing; [`ConnectorError::WrongNumberOfTables`]; [`ConnectorError::NoBlock`] if a table is too short;
    /// [`ConnectorError::Gone`] if two of its chunks have one name.
    pub fn blocks_allocated(
        &mut self,
        id: RequestId,
        tables: &[&[Option<BlockId>]],
    ) -> Result<CopyId, ConnectorError> {
        let request = self.requests.get_mut(&id).ok_or(RequestError::Unknown { req: id })?;
        let Match { wish, boundary } = request.matched.ok_or(ConnectorError::NoMatch { req: id })?;
        let groups = &self.options.groups;
        if tables.len() != groups.len() {
            let (given, groups) = (tables.len(), groups.len());
            return Err(ConnectorError::WrongNumberOfTables { req: id, given, groups });
        }
        for ((group, table), index) in groups.iter().zip(tables).zip(0..) {
            let missing = blocks_needed(group, &wish, boundary.end)
                .find(|block| !matches!(table.get(*block), Some(Some(_))));
            if let Some(block) = missing {
                return Err(ConnectorError::NoBlock { req: id, group: GroupIdx(index), block });
            }
        }
        let parts = parts(groups, &wish, boundary.end, self.options.load_chunks_max);
        let mut jobs = Vec::with_capacity(parts.len());
        for part in &parts {
            let keys: Vec<_> = part.iter().map(|of| request.groups[of.group].keys[of.chunk]).collect();
            match self.manager.prepare_load(&mut request.context, &keys) {
                Ok(job) => jobs.push(job),
                Err(error) => {
                    for LoadJob { token, .. } in jobs {
                        self.manager.complete_load(token).expect("it has just been prepared");
                    }
                    return Err(match error {
                        LoadError::Request(error) => error.into(),
                        error => ConnectorError::Gone { req: id, error },
                    });
                }
            }
        }
        request.matched = None;
        request.settled = wish.computed;
        request.good = None;
        request.load_from = unspoilt(&self.options, &wish, boundary.end);
        for ((group, state), table) in groups.iter().zip(&mut request.groups).zip(tables) {
            state.set_table(table);
            // Chunks that are loaded whole need not be offered, unless some before them were not.
            if !request.offers_all && needed(group, &wish, boundary.end).start <= state.next_store {
                state.next_store = state.next_store.max((boundary.end / group.chunk_tokens()) as usize);
            }
        }
        for (part, LoadJob { token, slots }) in parts.iter().zip(jobs) {
            let plan = self.copies.plan_load(request, groups, part, &slots);
            self.stats.waits += plan.after.len() as u64;
            let pool_of = |group: GroupIdx| groups[group.0 as usize].pool;
            let mut copy = OpenCopy::new(&plan, request.arrival, token, self.options.num_workers, pool_of);
            copy.first_token = part.iter().map(|of| of.first_token).min().unwrap_or(0);
            copy.usable = boundary.usable;
            request.num_open += 1;
            request.loading.push(plan.copy);
            self.copies.begin(copy);
            self.loads.push(plan);
        }
        Ok(request.loading[0])
    }
}

/// A chunk of a load, or the part of it that is loaded.
#[derive(Debug)]
struct Part {
    group: usize,
    chunk: usize,
    /// Places in the table.
    blocks: std::ops::Range<usize>,
    /// The first token that it brings.
    first_token: u32,
}

/// What is loaded up to `end`, so many chunks a copy: if they are several, first what begins first.
fn parts(groups: &[GroupOptions], wish: &Wish, end: u32, num_max: usize) -> Vec<Vec<Part>> {
    let mut all = Vec::new();
    for (nth, group) in groups.iter().enumerate() {
        let blocks = blocks_needed(group, wish, end);
        let per_chunk = group.blocks_per_chunk as usize;
        all.extend(needed(group, wish, end).map(|chunk| {
            let first = blocks.start.max(chunk * per_chunk);
            let first_token = u32::try_from(first).unwrap_or(u32::MAX).saturating_mul(group.block_tokens);
            Part { group: nth, chunk, blocks: first..blocks.end.min((chunk + 1) * per_chunk), first_token }
        }));
    }
    if all.len() > num_max {
        all.sort_by_key(|part| (part.first_token, part.group));
    }
    let mut parts = Vec::new();
    let mut rest = all.into_iter().peekable();
    while rest.peek().is_some() {
        parts.push(rest.by_ref().take(num_max).collect());
    }
    parts
}

impl Copies {
    /// The plan for a copy of a load, and what it has to wait for.
    fn plan_load(
        &mut self,
        request: &Request,
        groups: &[GroupOptions],
        parts: &[Part],
        slots: &[SlotId],
    ) -> CopyPlan {
        let mut plan = CopyPlan::new(self.next_id(), request.context.id(), request.params.load_class);
        for (Part { group, chunk, blocks, .. }, slot) in parts.iter().zip(slots) {
            let skip = blocks.start - chunk * groups[*group].blocks_per_chunk as usize;
            let skip = u32::try_from(skip).expect("less than a chunk has");
            let blocks = request.groups[*group].table[blocks.clone()].iter();
            let blocks = blocks.map(|block| block.expect("it was looked for before"));
            plan.push(group_idx(*group), *slot, skip, blocks);
        }
        let mut after = Vec::new();
        for (group, block) in plan.blocks() {
            self.users(groups[group.0 as usize].pool, block, &[], &mut after);
        }
        plan.after = after;
        plan
    }
}

/// The part of what was found that it is worth loading, if any is.
fn worth(
    economy: &Economy,
    options: &ConnectorOptions,
    wish: &Wish,
    found: Boundary,
    finder: &mut impl Finder,
) -> Option<Boundary> {
    let Wish { computed, num_tokens, step, .. } = *wish;
    let groups = &options.groups;
    // Groups of one kind have their chunks in the same tiers, so one stands for all.
    let (first, chunk_tokens) = (&groups[0], groups[0].chunk_tokens());
    let mut promoted = vec![(computed, 0)];
    for chunk in needed(first, wish, found.end) {
        let start = u32::try_from(chunk).unwrap_or(u32::MAX).saturating_mul(chunk_tokens).max(computed);
        let end = start.saturating_add(chunk_tokens).min(found.end);
        let later = if finder.find(0, chunk) == Found::Later { end - start } else { 0 };
        promoted.push((end, promoted.last().map_or(0, |(_, before)| before + later)));
    }
    let up_to = |end: u32| {
        let of_chunk = promoted.partition_point(|(start, _)| *start < end).min(promoted.len() - 1);
        (end, promoted[of_chunk].1)
    };
    let least = if options.is_cut_anywhere() { computed / step * step + step } else { found.end };
    let ends = (least..found.end).step_by(step as usize).chain([found.end]);
    let end = economy.split(computed, num_tokens, ends.map(up_to));
    if end == found.end {
        return Some(found);
    }
    let mut needs = groups
        .iter()
        .enumerate()
        .flat_map(|(nth, group)| needed(group, wish, end).map(move |chunk| (nth, chunk)));
    let later = needs.find(|(group, chunk)| finder.find(*group, *chunk) == Found::Later);
    (end > computed).then_some(Boundary { end, usable: end, later })
}

/// Tokens that were computed before a load and still are when it fails: a block in which it begins is spoilt as a whole. None,
/// if some group has no more what the token behind them attends to.
fn unspoilt(options: &ConnectorOptions, wish: &Wish, end: u32) -> u32 {
    let first = |group: &GroupOptions| {
        let blocks = blocks_needed(group, wish, end);
        let block = u32::try_from(blocks.start).unwrap_or(u32::MAX);
        if blocks.is_empty() { u32::MAX } else { block.saturating_mul(group.block_tokens) }
    };
    let unspoilt = options.groups.iter().map(first).fold(wish.computed, u32::min);
    options.go_back(wish.computed, unspoilt)
}

/// Looks for chunks in the tiers, for each at most once.
struct InTiers<'a, M> {
    manager: &'a mut M,
    copies: &'a Copies,
    context: &'a mut RequestContext,
    keys: Vec<&'a [OffloadKey]>,
    groups: &'a [GroupOptions],
    known: HashMap<(usize, usize), Found>,
    /// No boundary is further.
    end: u32,
    /// Whether it may say that a chunk will be there later.
    is_patient: bool,
    /// Whether it has said of such a chunk that it is absent.
    gave_up: bool,
}

impl<M: OffloadManager> InTiers<'_, M> {
    fn of(&mut self, key: &OffloadKey, result: LookupResult) -> Found {
        match result {
            // Its store has failed, and nobody knows when the slot is free.
            LookupResult::HitPending if self.copies.is_lost(key) => Found::Absent,
            LookupResult::Hit | LookupResult::Miss => Found::Absent,
            LookupResult::HitPending | LookupResult::Retry if self.is_patient => Found::Later,
            LookupResult::HitPending | LookupResult::Retry => {
                self.gave_up = true;
                Found::Absent
            }
        }
    }
}

impl<M: OffloadManager> Finder for InTiers<'_, M> {
    fn find(&mut self, group: usize, chunk: usize) -> Found {
        if let Some(found) = self.known.get(&(group, chunk)) {
            return *found;
        }
        let Some(keys) = self.keys[group].get(chunk..).filter(|keys| !keys.is_empty()) else {
            return Found::Absent;
        };
        // With full attention those behind it are asked for next. What is ready is pinned at once: a chunk that is brought
        // up for a later question may take the room of one that nobody holds.
        let num = match self.groups[group] {
            of if of.kind == GroupKind::Full => {
                let num = (self.end.div_ceil(of.chunk_tokens()) as usize).saturating_sub(chunk);
                num.clamp(1, keys.len())
            }
            _ => 1,
        };
        let mut ready = self.manager.reserve(&keys[..num]);
        if ready == 0 {
            let result = self.manager.lookup(self.context, &keys[0]);
            if result == LookupResult::Hit {
                // It has come up since: the lookup is what asked the tiers.
                ready = self.manager.reserve(&keys[..num]);
            }
            if ready == 0 {
                let found = self.of(&keys[0], result);
                self.known.insert((group, chunk), found);
            }
        }
        self.known.extend((chunk..chunk + ready).map(|chunk| ((group, chunk), Found::Ready)));
        self.known[&(group, chunk)]
    }
}
