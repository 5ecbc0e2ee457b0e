//! The library's side of the control interface.

use std::time::Duration;

use crate::{
    abi::Code,
    copy::Side,
    memory::Span,
    state::driver,
    streams::Stream,
    symbols::SYMBOLS,
    wire::{self, Controls, Count, Held, Item, List, Setting, native},
    work::{Compute, Work},
};

pub(crate) static CONTROLS: Controls = Controls {
    bytes: size_of::<Controls>(),
    num_symbols: SYMBOLS.len(),
    reset,
    set,
    fail,
    hold,
    release,
    step,
    kill,
    kill_at_copy,
    calls,
    count,
    item,
    forget,
    compute,
    shadow,
    check_red_zones,
    side_by_side,
};

extern "C" fn reset() {
    driver().reset();
}

extern "C" fn set(setting: u32, first: u64, second: u64, value: i64) -> bool {
    let Some(setting) = Setting::from_number(setting) else { return false };
    let mut state = driver().lock();
    let small = i32::try_from(value).unwrap_or(i32::MAX);
    let size = usize::try_from(value).unwrap_or(0);
    match setting {
        Setting::DriverVersion => state.config.driver_version = small,
        Setting::DeviceCount => state.config.device_count = size,
        Setting::InitCode => state.config.init_code = small.unsigned_abs(),
        Setting::Attribute => {
            state.config.attributes.insert((first, second), small);
        }
        Setting::MemoryBytes => state.config.memory_bytes = size.min(crate::state::ARENA_BYTES),
        Setting::EngineRate => state.config.engine_rate = value.unsigned_abs(),
        Setting::RegistrationBytesMax => state.config.registration_bytes_max = size,
        Setting::Hidden => {
            let symbol = usize::try_from(first).unwrap_or(usize::MAX);
            if value != 0 {
                state.config.hidden.insert(symbol);
            } else {
                state.config.hidden.remove(&symbol);
            }
        }
        Setting::BatchFailure => {
            let member = usize::try_from(first).unwrap_or(usize::MAX);
            state.faults.fail_batch(member, Code(small.unsigned_abs()));
        }
        Setting::JournalKept => state.config.is_journal_kept = value != 0,
    }
    true
}

extern "C" fn fail(symbol: usize, nth: u64, times: u64, code: u32) {
    if let Some((name, _)) = SYMBOLS.get(symbol) {
        driver().lock().faults.add(name, nth, times, Code(code));
    }
}

extern "C" fn hold(held: u32, first: u64, second: u64) {
    change(held, first, second, true);
}

extern "C" fn release(held: u32, first: u64, second: u64) {
    change(held, first, second, false);
}

fn change(held: u32, first: u64, second: u64, is_held: bool) {
    if let Some(held) = Held::from_number(held) {
        driver().lock().holds.change(held, first, second, is_held);
        driver().wake();
    }
}

/// Lets a held stream do one operation, and waits until that is over or waits itself.
extern "C" fn step(handle: u64) -> u32 {
    let driver = driver();
    let mut state = driver.lock();
    let Some(stream) = state.streams.get(&handle) else { return wire::STEP_NONE };
    if !stream.has_work() {
        return wire::STEP_NONE;
    }
    let before = stream.ended();
    if !stream.is_running() {
        *state.holds.steps.entry(handle).or_default() += 1;
        driver.wake();
    }
    loop {
        match state.streams.get(&handle) {
            Some(stream) if stream.ended() > before => return wire::STEP_DONE,
            Some(stream) if stream.is_blocked => return wire::STEP_BLOCKED,
            Some(Stream { context, .. }) if state.usable(*context).is_ok() => {}
            _ => return wire::STEP_NONE,
        }
        state = driver.wait(state);
    }
}

extern "C" fn kill(device: u64, code: u32) {
    driver().lock().kill(usize::try_from(device).unwrap_or(usize::MAX), Code(code));
    driver().wake();
}

extern "C" fn kill_at_copy(nth: u64, code: u32) {
    driver().lock().faults.kill_at_copy(nth, Code(code));
}

extern "C" fn calls(symbol: usize) -> u64 {
    let name = SYMBOLS.get(symbol).map_or("", |(name, _)| name);
    driver().lock().calls.get(name).copied().unwrap_or(0)
}

extern "C" fn count(count: u32) -> u64 {
    let Some(count) = Count::from_number(count) else { return 0 };
    let state = driver().lock();
    let retains = || state.devices.iter().map(|device| u64::from(device.retains)).sum();
    let allocations = || state.devices.iter().map(|device| device.allocations.len() as u64).sum();
    match count {
        Count::Streams => state.open_streams().count() as u64,
        Count::Events => state.events.len() as u64,
        Count::Allocations => allocations(),
        Count::Registrations => state.host.len() as u64,
        Count::Modules => state.modules.len() as u64,
        Count::Retains => retains(),
        _ => state.tally.of(count).unwrap_or(0),
    }
}

extern "C" fn item(list: u32, index: u64) -> Item {
    let Some(list) = List::from_number(list) else { return Item::default() };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    driver().lock().tally.list(list).get(index).copied().unwrap_or_default()
}

extern "C" fn forget(list: u32) {
    if let Some(list) = List::from_number(list) {
        driver().lock().tally.list(list).clear();
    }
}

extern "C" fn compute(stream: u64, work: u32, address: u64, bytes: u64, seed: u64, delay_us: u64) -> u32 {
    let Some(work) = wire::Work::from_number(work) else { return Code::INVALID_VALUE.0 };
    let mut state = driver().lock();
    let enqueued = (|| {
        let context = state.streams.get(&stream).map(|stream| stream.context).ok_or(Code::INVALID_HANDLE)?;
        let bytes = usize::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
        let span = if work == wire::Work::Nothing {
            Span::of_caller(0, 0)
        } else {
            let place = state.place(context, address, bytes)?;
            if !matches!(place.side, Side::Device(_)) {
                return Err(Code::INVALID_VALUE);
            }
            place.span
        };
        let compute = Compute { work, span, address, seed, delay: Duration::from_micros(delay_us) };
        state.enqueue(context, stream, Work::Compute(compute))
    })();
    enqueued.map_or_else(|code| code.0, |_| 0)
}

extern "C" fn shadow(address: u64, bytes: u64, anywhere: bool) -> u64 {
    let state = driver().lock();
    let allocation = state.allocation_at(address);
    let is_inside = allocation.is_some_and(|(_, start, length)| bytes <= start + length as u64 - address);
    let device = state.device_at(address).filter(|_| is_inside || anywhere);
    let span = device.and_then(|device| state.arenas[device].span(address, native(bytes)));
    span.map_or(0, Span::address)
}

extern "C" fn side_by_side(device: u64, bytes: u64, count: u64) -> u64 {
    let device = usize::try_from(device).unwrap_or(usize::MAX);
    let address = driver().lock().allocate_side_by_side(device, native(bytes), native(count));
    address.unwrap_or(0)
}

extern "C" fn check_red_zones() {
    driver().lock().check_red_zones();
}
