//! From a description to a sound layout.

use kvo_core::{GroupIdx, RegionId};

use super::{
    CanonicalPage, ChunkPlace, GroupLayout, GroupSpec, PagePlane, PageRef,
    overlap::{Row, overlap},
    region_bytes,
    strips::{self, Strip},
};
use crate::{GeometryError, PageName};

/// Where the last byte of anything may be: as far as an allocation can reach.
const END_MAX: u64 = i64::MAX as u64;
/// Planes of a group, over all page references: each is compared with each.
const PLANES_MAX: usize = 1 << 14;
/// Stretches of the blocks of a chunk.
const STRETCHES_MAX: usize = 1 << 22;

/// Checks groups, each on its own and then all against each other.
pub(super) fn groups(
    regions: &[(RegionId, u64)],
    specs: &[GroupSpec],
) -> Result<Box<[GroupLayout]>, GeometryError> {
    if specs.is_empty() {
        return Err(GeometryError::Zero { field: "groups" });
    }
    let pool_of = |nth: usize, spec: &GroupSpec| {
        let same = |other: &GroupSpec| spec.pool.is_some() && other.pool == spec.pool;
        specs.iter().position(same).unwrap_or(nth)
    };
    let groups = specs.iter().zip(0_u32..).enumerate();
    let groups = groups
        .map(|(nth, (spec, idx))| Group { idx: GroupIdx(idx), spec, regions }.layout(pool_of(nth, spec)));
    let groups = groups.collect::<Result<Box<[_]>, _>>()?;
    pages_are_apart(&groups)?;
    Ok(groups)
}

/// A group that is being checked.
struct Group<'a> {
    idx: GroupIdx,
    spec: &'a GroupSpec,
    regions: &'a [(RegionId, u64)],
}

impl Group<'_> {
    fn layout(&self, pool: usize) -> Result<GroupLayout, GeometryError> {
        let &GroupSpec { num_blocks, blocks_per_chunk, .. } = self.spec;
        self.is_not_empty()?;
        self.is_not_too_large()?;
        let mut pieces = Vec::with_capacity(self.spec.pages.len());
        for (page, canonical) in self.canonical_pages() {
            self.runs_are_inside(page, &canonical)?;
            pieces.push(strips::pieces(self.name(page), &canonical)?);
        }
        for page in 0..self.spec.pages.len() {
            self.is_inside_region(page)?;
        }
        let (planes, chunk_bytes) = self.planes()?;
        let mut strips: Vec<_> = planes
            .iter()
            .flat_map(|plane| pieces[plane.page].iter().map(move |&piece| (plane, piece)))
            .map(|(plane, piece)| Strip::new(plane, piece, num_blocks, blocks_per_chunk))
            .collect();
        strips.sort_by_key(|strip| (strip.layer, strip.slot_offset));
        Ok(GroupLayout {
            num_blocks,
            blocks_per_chunk,
            pool,
            chunk_bytes,
            planes: planes.into(),
            pieces: pieces.into(),
            strips: strips.into(),
        })
    }

    fn name(&self, page: usize) -> PageName {
        PageName { group: self.idx, page }
    }

    /// Each page reference's page in a chunk; a page as it is is canonical with one run.
    fn canonical_pages(&self) -> impl Iterator<Item = (usize, CanonicalPage)> {
        self.spec.pages.iter().map(canonical).enumerate()
    }

    fn is_not_empty(&self) -> Result<(), GeometryError> {
        let spec = self.spec;
        for (field, zero) in [
            ("num_blocks", spec.num_blocks == 0),
            ("blocks_per_chunk", spec.blocks_per_chunk == 0),
            ("pages", spec.pages.is_empty()),
        ] {
            if zero {
                return Err(GeometryError::ZeroInGroup { group: self.idx, field });
            }
        }
        for (nth, page) in spec.pages.iter().enumerate() {
            let runs = page.canonical.iter().flat_map(|page| &page.runs);
            for (field, zero) in [
                ("planes", page.planes == 0),
                ("page_bytes", page.page_bytes == 0),
                ("canonical page_bytes", page.canonical.as_ref().is_some_and(|page| page.page_bytes == 0)),
                ("runs", page.canonical.as_ref().is_some_and(|page| page.runs.is_empty())),
                ("bytes of a run", runs.clone().any(|run| run.bytes == 0)),
                ("count of a run", runs.clone().any(|run| run.count == 0)),
            ] {
                if zero {
                    return Err(GeometryError::ZeroInPage { page: self.name(nth), field });
                }
            }
        }
        Ok(())
    }

    /// What follows takes memory in proportion to these.
    fn is_not_too_large(&self) -> Result<(), GeometryError> {
        let (mut planes, mut stretches) = (0_u64, 0_u64);
        for page in &self.spec.pages {
            planes += u64::from(page.planes);
            let runs = page.canonical.iter().flat_map(|page| &page.runs);
            let runs = runs.map(|run| u64::from(run.count)).sum::<u64>();
            let subs = if is_gathered(page) { 1 } else { u64::from(self.spec.blocks_per_chunk) };
            stretches = stretches.saturating_add(u64::from(page.planes).saturating_mul(runs.max(subs)));
        }
        for (field, num, max) in [("planes", planes, PLANES_MAX), ("stretches", stretches, STRETCHES_MAX)] {
            if num > max as u64 {
                return Err(GeometryError::TooMany { group: self.idx, field, max });
            }
        }
        Ok(())
    }

    fn runs_are_inside(&self, nth: usize, canonical: &CanonicalPage) -> Result<(), GeometryError> {
        let page = self.name(nth);
        let device_page_bytes = self.spec.pages[nth].page_bytes;
        for (run, stretches) in canonical.runs.iter().enumerate() {
            for (side, offset, stride, page_bytes) in [
                ("device", stretches.local_offset, stretches.local_stride, device_page_bytes),
                ("chunk", stretches.chunk_offset, stretches.chunk_stride, canonical.page_bytes),
            ] {
                let last = u64::from(stretches.count - 1).checked_mul(stride);
                let end = last.and_then(|last| last.checked_add(offset)?.checked_add(stretches.bytes));
                if end.is_none_or(|end| end > page_bytes) {
                    return Err(GeometryError::BeyondPage { page, run, side, page_bytes });
                }
            }
        }
        Ok(())
    }

    fn is_inside_region(&self, nth: usize) -> Result<(), GeometryError> {
        let (name, page) = (self.name(nth), &self.spec.pages[nth]);
        let &PageRef { region, base_offset, block_stride, page_bytes, .. } = page;
        let region_bytes =
            region_bytes(self.regions, region).ok_or(GeometryError::UnknownRegion { page: name, region })?;
        if self.spec.num_blocks > 1 && block_stride < page_bytes {
            let field = "block_stride";
            return Err(GeometryError::StrideTooSmall {
                page: name,
                field,
                stride: block_stride,
                page_bytes,
            });
        }
        let last = [(page.planes, page.plane_stride), (self.spec.num_blocks, block_stride)];
        let end = end(base_offset, last, page_bytes)
            .ok_or(GeometryError::Overflow { page: name, field: "base_offset" })?;
        if end > region_bytes {
            return Err(GeometryError::BeyondRegion { page: name, region, end, region_bytes });
        }
        Ok(())
    }

    /// All planes, with places in the chunk in which no two share a byte, and the chunk's bytes.
    fn planes(&self) -> Result<(Vec<PagePlane>, u64), GeometryError> {
        let (mut planes, mut next_offset, mut chunk_end) = (Vec::new(), 0, 0);
        for (nth, page) in self.spec.pages.iter().enumerate() {
            let overflow = || GeometryError::Overflow { page: self.name(nth), field: "place" };
            let (place, end) = self.place(page, &mut next_offset).ok_or_else(overflow)?;
            if let Some(chunk_bytes) = self.spec.chunk_bytes.filter(|&chunk_bytes| end > chunk_bytes) {
                return Err(GeometryError::BeyondChunk { page: self.name(nth), end, chunk_bytes });
            }
            chunk_end = end.max(chunk_end);
            planes.extend((0..page.planes).map(|plane| PagePlane {
                layer: page.layer,
                plane,
                region: page.region,
                base_offset: page.base_offset + u64::from(plane) * page.plane_stride,
                block_stride: page.block_stride,
                page_bytes: page.page_bytes,
                chunk_offset: place.offset + u64::from(plane) * place.plane_stride,
                chunk_block_stride: place.block_stride,
                chunk_page_bytes: chunk_page_bytes(page),
                page: nth,
            }));
        }
        if let Some((first, second)) = self.overlap_in_chunk(&planes) {
            let (first, second) = (self.name(first), self.name(second));
            return Err(GeometryError::ChunkOverlap { first, second });
        }
        let chunk_bytes = self.spec.chunk_bytes.unwrap_or(chunk_end);
        if chunk_bytes > END_MAX {
            return Err(GeometryError::Overflow { page: self.name(0), field: "chunk_bytes" });
        }
        Ok((planes, chunk_bytes))
    }

    /// Where a page reference is in the chunk and where it ends there. One without a place goes to `next_offset`.
    fn place(&self, page: &PageRef, next_offset: &mut u64) -> Option<(ChunkPlace, u64)> {
        let page_bytes = chunk_page_bytes(page);
        let place = if let Some(place) = page.place {
            place
        } else {
            let plane_stride = page_bytes.checked_mul(u64::from(self.spec.blocks_per_chunk))?;
            let bytes = plane_stride.checked_mul(u64::from(page.planes))?;
            let offset = *next_offset;
            *next_offset = next_offset.checked_add(bytes)?;
            ChunkPlace { offset, plane_stride, block_stride: page_bytes }
        };
        let last = [(page.planes, place.plane_stride), (self.spec.blocks_per_chunk, place.block_stride)];
        Some((place, end(place.offset, last, page_bytes)?))
    }

    /// Two page references that share a byte of the chunk.
    fn overlap_in_chunk(&self, planes: &[PagePlane]) -> Option<(usize, usize)> {
        let mut stretches = Vec::new();
        for plane in planes {
            let subs = u64::from(self.spec.blocks_per_chunk);
            if plane.chunk_block_stride == plane.chunk_page_bytes {
                stretches.push((plane.chunk_offset, subs * plane.chunk_page_bytes, plane.page));
            } else {
                let start = |sub| plane.chunk_offset + sub * plane.chunk_block_stride;
                stretches.extend((0..subs).map(|sub| (start(sub), plane.chunk_page_bytes, plane.page)));
            }
        }
        overlap(&mut stretches)
    }
}

/// A page as it is becomes a canonical page of one run.
fn canonical(page: &PageRef) -> CanonicalPage {
    page.canonical.clone().unwrap_or_else(|| CanonicalPage::of_parts(1, 1, 0, 1, page.page_bytes))
}

/// Bytes of a page in a chunk.
fn chunk_page_bytes(page: &PageRef) -> u64 {
    page.canonical.as_ref().map_or(page.page_bytes, |page| page.page_bytes)
}

/// Whether the sub-blocks of a plane are side by side in a chunk.
fn is_gathered(page: &PageRef) -> bool {
    page.place.is_none_or(|place| place.block_stride == chunk_page_bytes(page))
}

/// Where the last of evenly spaced pages ends, if an allocation can reach so far. `last` are counts and strides.
fn end(offset: u64, last: [(u32, u64); 2], page_bytes: u64) -> Option<u64> {
    let offset = last.into_iter().try_fold(offset, |offset, (count, stride)| {
        offset.checked_add(u64::from(count - 1).checked_mul(stride)?)
    })?;
    offset.checked_add(page_bytes).filter(|&end| end <= END_MAX)
}

/// No two pages of different blocks share a byte of a region, nor of the same block if the groups are not of one pool.
fn pages_are_apart(groups: &[GroupLayout]) -> Result<(), GeometryError> {
    let mut rows: Vec<_> = groups
        .iter()
        .zip(0..)
        .flat_map(|(group, idx)| group.planes().iter().map(move |plane| (group, GroupIdx(idx), plane)))
        .map(|(group, idx, plane)| (plane.region, row(group, plane), group.pool(), idx, plane.page))
        .collect();
    rows.sort_by_key(|(region, row, ..)| (*region, row.base));
    for (nth, (region, row, pool, group, page)) in rows.iter().enumerate() {
        // Only pages that begin before this plane's last page ends can share a byte with it.
        let end = row.end();
        let near = rows[nth + 1..].iter().take_while(|(other, next, ..)| other == region && next.base < end);
        for (_, other_row, other_pool, other_group, other_page) in near {
            let same_block_may = pool == other_pool && group != other_group;
            if row.meets(other_row, same_block_may) {
                let one = PageName { group: *group, page: *page };
                let other = PageName { group: *other_group, page: *other_page };
                let (first, second) = in_order(one, other);
                return Err(GeometryError::PagesOverlap { first, second, region: *region });
            }
        }
    }
    Ok(())
}

fn row(group: &GroupLayout, plane: &PagePlane) -> Row {
    let &PagePlane { base_offset: base, block_stride, page_bytes: bytes, .. } = plane;
    Row { base, stride: block_stride.max(1), bytes, count: group.num_blocks() }
}

fn in_order(one: PageName, other: PageName) -> (PageName, PageName) {
    let is_first = (one.group, one.page) <= (other.group, other.page);
    if is_first { (one, other) } else { (other, one) }
}
