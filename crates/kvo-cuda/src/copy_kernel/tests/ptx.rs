//! The PTX that is checked in, run by the interpreter over memory that lets through nothing but the slices.

use std::cell::RefCell;

use kvo_ptx::{BadAddress, Fault, Kernel, Memory, Module, Stats};

use super::{
    super::{Arguments, COPY_PTX, Entry, Grid, Slice, cut},
    lists::{List, Random, copied, range},
};

/// Where the memory is for the kernel, and where the list of slices.
const MEMORY: u64 = 0x7f12_3456_0000;
const LIST: u64 = 0x0002_0000_0008;

/// Memory of which only sources can be read and only destinations be written, each byte once.
struct Guarded {
    bytes: RefCell<Vec<u8>>,
    readable: Vec<bool>,
    writable: RefCell<Vec<bool>>,
    list: Vec<u8>,
}

impl Guarded {
    fn new(before: &[u8], slices: &[Slice]) -> Self {
        let mut readable = vec![false; before.len()];
        let mut writable = vec![false; before.len()];
        for slice in slices {
            readable[range(slice.source, slice.bytes)].fill(true);
            writable[range(slice.destination, slice.bytes)].fill(true);
        }
        Self { bytes: RefCell::new(before.to_vec()), readable, writable: writable.into(), list: Vec::new() }
    }

    fn list(&mut self, slices: &[Slice]) {
        let placed = |slice: &Slice| Slice {
            source: MEMORY + slice.source,
            destination: MEMORY + slice.destination,
            bytes: slice.bytes,
        };
        self.list = slices.iter().flat_map(|slice| placed(slice).to_bytes()).collect();
    }
}

fn within(address: u64, start: u64, bytes: usize, length: usize) -> Option<std::ops::Range<usize>> {
    let first = usize::try_from(address.checked_sub(start)?).ok()?;
    Some(first..first.checked_add(bytes).filter(|end| *end <= length)?)
}

impl Memory for Guarded {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), BadAddress> {
        if let Some(range) = within(address, LIST, out.len(), self.list.len()) {
            out.copy_from_slice(&self.list[range]);
            return Ok(());
        }
        let range = within(address, MEMORY, out.len(), self.readable.len()).ok_or(BadAddress)?;
        if self.readable[range.clone()].contains(&false) {
            return Err(BadAddress);
        }
        out.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BadAddress> {
        let range = within(address, MEMORY, bytes.len(), self.readable.len()).ok_or(BadAddress)?;
        let writable = &mut self.writable.borrow_mut()[range.clone()];
        if writable.contains(&false) {
            return Err(BadAddress);
        }
        writable.fill(false);
        self.bytes.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }
}

fn module() -> Module {
    Module::parse(COPY_PTX).unwrap()
}

fn kernel(module: &Module, entry: Entry) -> &Kernel {
    module.kernel(entry.name().to_str().unwrap()).unwrap()
}

/// Launches an entry over a list of slices.
fn launch(
    kernel: &Kernel,
    ctas: u32,
    threads: u32,
    slices: &[Slice],
    memory: &mut Guarded,
) -> Result<Stats, Fault> {
    memory.list(slices);
    let arguments = Arguments { slices: LIST, num_slices: u32::try_from(slices.len()).unwrap() };
    let mut params = vec![0; kernel.param_bytes()];
    params[..8].copy_from_slice(&arguments.slices.to_le_bytes());
    params[8..].copy_from_slice(&arguments.num_slices.to_le_bytes());
    kernel.launch([ctas, 1, 1], [threads, 1, 1], &params, memory)
}

#[track_caller]
fn check_copied(memory: &Guarded, after: &[u8]) {
    assert!(!memory.writable.borrow().contains(&true), "a byte of a destination was not written");
    let wrong = memory.bytes.borrow().iter().zip(after).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "the place of the first wrong byte");
}

#[track_caller]
fn check_list(kernel: &Kernel, ctas: u32, threads: u32, list: &List) -> Stats {
    let mut memory = Guarded::new(&list.before, &list.slices);
    let stats = launch(kernel, ctas, threads, &list.slices, &mut memory).unwrap();
    check_copied(&memory, &list.after);
    stats
}

#[test]
fn random_slices_are_copied_to_the_byte_in_every_shape() {
    let module = module();
    let shapes = [(1, 32), (4, 512), (1, 512), (2, 96), (7, 64), (40, 32)];
    let mut instructions = 0;
    for seed in Random::seeds(2500) {
        eprintln!("KVO_TEST_SEED={seed}");
        let mut random = Random::new(seed);
        let list = List::random(&mut random);
        let (ctas, threads) = shapes[random.below(shapes.len())];
        instructions += check_list(kernel(&module, Entry::Any), ctas, threads, &list).instructions;
        if list.is_aligned {
            instructions += check_list(kernel(&module, Entry::Aligned), ctas, threads, &list).instructions;
        }
    }
    eprintln!("{instructions} instructions");
}

#[test]
fn every_pair_of_alignments_is_copied_at_many_lengths() {
    let module = module();
    let lengths: Vec<usize> = (0..=40).chain([255, 256, 257, 511, 512, 4095, 4096, 4113]).collect();
    let mut random = Random::new(1);
    let before = random.bytes(32 << 10);
    for (source, destination) in (0..16).flat_map(|source| (0..16).map(move |to| (source, to))) {
        let mut end = 8 << 10;
        let slices: Vec<_> = lengths
            .iter()
            .map(|&bytes| {
                let to = (end + 1_usize).next_multiple_of(16) + destination;
                end = to + bytes;
                let from = random.below(128) * 16 + source;
                Slice { source: from as u64, destination: to as u64, bytes: bytes as u64 }
            })
            .collect();
        let list =
            List { after: copied(&before, &slices), before: before.clone(), slices, is_aligned: false };
        check_list(kernel(&module, Entry::Any), 1, 32, &list);
    }
}

#[test]
fn a_plan_that_was_cut_is_copied_to_the_byte() {
    let module = module();
    for seed in Random::seeds(12) {
        eprintln!("KVO_TEST_SEED={seed}");
        let mut random = Random::new(seed);
        let before = random.bytes(1 << 20);
        let unit = [1, 16][random.below(2)];
        let mut word = |below: usize| (random.below(below) / unit * unit) as u64;
        let large =
            Slice { source: word(1000), destination: (500 << 10) + word(1000), bytes: word(300 << 10) };
        let small = Slice { source: word(400 << 10), destination: (900 << 10) + word(99), bytes: word(5000) };
        let fragments = [large, small];
        let (mut slices, mut launches) = (Vec::new(), Vec::new());
        cut(&fragments, Grid::default(), &mut slices, &mut launches);
        let mut memory = Guarded::new(&before, &fragments);
        for part in &launches {
            let (entry, own) = (kernel(&module, part.entry), &slices[part.slices.clone()]);
            launch(entry, part.ctas, part.threads, own, &mut memory).unwrap();
        }
        check_copied(&memory, &copied(&before, &fragments));
    }
}

#[test]
fn words_of_16_bytes_copy_what_both_addresses_allow() {
    let module = module();
    let before = vec![7; 16 << 10];
    let stats = |source, destination, bytes| {
        let slices = [Slice { source, destination, bytes }];
        let mut memory = Guarded::new(&before, &slices);
        launch(kernel(&module, Entry::Any), 1, 32, &slices, &mut memory).unwrap()
    };
    // Each of the list's words is loaded by all lanes.
    assert_eq!((stats(0, 8192, 4096).stores, stats(0, 8192, 4096).loads), (256, 256 + 3 * 32));
    assert_eq!(stats(3, 8195, 4096).stores, 13 + 255 + 3);
    assert_eq!(stats(8, 8192, 4096).stores, 512);
    assert_eq!(stats(1, 8192, 4096).stores, 4096);
}

#[test]
fn a_slice_in_memory_that_refuses_it_is_a_fault() {
    let module = module();
    let list = List::random(&mut Random::new(5));
    let (nth, slice) = list.slices.iter().enumerate().find(|(_, slice)| slice.bytes > 100).unwrap();
    let mut memory = Guarded::new(&list.before, &list.slices);
    memory.writable.borrow_mut()[range(slice.destination, 1)].fill(false);
    let fault = launch(kernel(&module, Entry::Any), 1, 32, &list.slices, &mut memory).unwrap_err();
    assert!(matches!(fault, Fault::BadAddress { is_store: true, .. }), "{nth}: {fault}");
    let mut memory = Guarded::new(&list.before, &list.slices);
    memory.readable[range(slice.source, slice.bytes)].fill(false);
    let fault = launch(kernel(&module, Entry::Any), 1, 32, &list.slices, &mut memory).unwrap_err();
    assert!(matches!(fault, Fault::BadAddress { is_store: false, .. }), "{nth}: {fault}");
}

#[test]
fn the_aligned_entry_does_not_take_other_slices() {
    let module = module();
    let slices = [Slice { source: 8, destination: 1024, bytes: 64 }];
    let mut memory = Guarded::new(&[0; 2048], &slices);
    let fault = launch(kernel(&module, Entry::Aligned), 1, 32, &slices, &mut memory).unwrap_err();
    assert!(matches!(fault, Fault::Misaligned { bytes: 16, .. }), "{fault}");
}

#[test]
fn the_ptx_declares_what_the_arguments_have() {
    let module = module();
    assert_eq!((module.version(), module.target()), ((8, 1), "sm_80"));
    assert_eq!(module.kernels().len(), Entry::ALL.len());
    for entry in Entry::ALL {
        let kernel = kernel(&module, entry);
        let params: Vec<_> = kernel.params().iter().map(|param| (param.offset, param.size)).collect();
        let slices = std::mem::offset_of!(Arguments, slices);
        let num_slices = std::mem::offset_of!(Arguments, num_slices);
        assert_eq!(params, [(slices, 8), (num_slices, 4)]);
        assert_eq!(kernel.threads_max(), Grid::THREADS_MAX);
    }
}
