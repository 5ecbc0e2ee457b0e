//! Tables that are large and read at random: what the processor and the kernel are to be told of them.

use std::collections::TryReserveError;

/// A huge page on x86-64, and on most else.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Tables of less have no use for huge pages.
const HUGE_TABLE_BYTES: usize = 4 * HUGE_PAGE_BYTES;

/// An empty vector with room for `len` values, on huge pages where it is large and the kernel has them.
///
/// A random access to a large table then misses the caches of address translation less often. What is never used of the
/// room takes no memory, up to a huge page.
///
/// # Errors
/// If there is no memory for it.
pub fn reserve_table<T>(len: usize) -> Result<Vec<T>, TryReserveError> {
    let mut table = Vec::new();
    table.try_reserve_exact(len)?;
    #[cfg(target_os = "linux")]
    advise_huge_pages(&mut table);
    Ok(table)
}

/// Asks for huge pages for the whole ones within the room of a vector. It is a hint: no answer is an error.
#[cfg(target_os = "linux")]
fn advise_huge_pages<T>(table: &mut Vec<T>) {
    use rustix::mm::{Advice, madvise};
    let room = table.spare_capacity_mut();
    let (len, start) = (size_of_val(room), room.as_mut_ptr().addr());
    let skipped = start.next_multiple_of(HUGE_PAGE_BYTES) - start;
    let whole = len.saturating_sub(skipped) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if len < HUGE_TABLE_BYTES || whole == 0 {
        return;
    }
    let first = room.as_mut_ptr().cast::<u8>().wrapping_add(skipped);
    // SAFETY: `first` and `whole` are within `room`, which `table` has allocated and which is borrowed until the call
    // has returned. This advice changes neither what memory holds nor what may be done with it.
    let _ = unsafe { madvise(first.cast(), whole, Advice::LinuxHugepage) };
}

/// Asks for the cache line where `value` begins, so that a read soon after need not wait for all of a memory access.
///
/// It is a hint, on x86-64; elsewhere it does nothing. It reads nothing and changes nothing.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at: *const T = value;
        // SAFETY: a prefetch accesses no memory that the program can tell, whatever the address, and every x86-64
        // processor has it.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_room_for_what_was_asked_and_keeps_what_it_is_given() {
        for len in [0, 1, 1_000, HUGE_TABLE_BYTES / 8 - 1, HUGE_TABLE_BYTES / 8, 3_000_000] {
            let mut table = reserve_table::<u64>(len).unwrap();
            assert!(table.is_empty() && table.capacity() >= len);
            let before = table.capacity();
            table.extend((0..len).map(|n| n as u64));
            assert_eq!(table.capacity(), before, "it was not moved");
            assert!(table.iter().enumerate().all(|(at, n)| *n == at as u64));
            table.iter().for_each(prefetch);
        }
    }

    #[test]
    fn a_table_beyond_all_memory_is_an_error() {
        assert!(reserve_table::<u64>(usize::MAX / 16).is_err());
        assert!(reserve_table::<u64>(usize::MAX).is_err());
    }

    /// Where the kernel hands out huge pages at all, a large table that was filled is on them.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_table_is_marked_for_huge_pages() {
        let Ok(mode) = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") else {
            eprintln!("SKIPPED: the kernel does not say whether it has huge pages");
            return;
        };
        if mode.contains("[never]") {
            eprintln!("SKIPPED: the kernel hands out no huge pages");
            return;
        }
        let table = reserve_table::<u64>(4 * HUGE_TABLE_BYTES / 8).unwrap();
        let inside = table.as_ptr().addr() + HUGE_TABLE_BYTES;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(is_marked(&maps, inside), "the mapping of {inside:x} must have the flag hg");
    }

    /// Whether the mapping that an address is in has the flag `hg`.
    #[cfg(target_os = "linux")]
    fn is_marked(maps: &str, address: usize) -> bool {
        let mut is_in = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                is_in = (from..to).contains(&address);
            } else if is_in && line.starts_with("VmFlags:") {
                return line.split_whitespace().any(|flag| flag == "hg");
            }
        }
        false
    }
}
