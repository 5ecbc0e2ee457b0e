//! `limit`: what the link can do: one huge copy at a time, by plain calls of the driver.

use std::time::Instant;

use kvo_core::{Direction, SlotId};
use kvo_cuda::CopyPath;
use kvo_gpu_check::{BedOptions, LentId, StreamId, TestBed};
use serde_json::json;

use crate::{
    copies::Rig,
    ground::{Ground, Outcome},
    rows::{Rounds, Row, direction_name, row},
};

/// Both sides of a direction.
struct Way {
    direction: Direction,
    address: u64,
    lent: LentId,
    stream: StreamId,
}

pub(crate) fn run(ground: &mut Ground) -> anyhow::Result<Outcome> {
    let bytes: u64 = ground.pick(512 << 20, 256 << 20, 8 << 20);
    let rounds = ground.pick(9, 5, 3);
    // Each direction has a slot, and as much of the device.
    let mut rig = Rig::new(ground, bytes, bytes, BedOptions::default())?;
    if let Some(failure) = rig.why_not(CopyPath::Memcpy) {
        ground.tell(&row(json!({"failure": failure})))?;
        return Ok(Outcome::Done);
    }
    let addresses = [rig.address, rig.bed.allocate(bytes).address()];
    let memory = rig.bed.host();
    let engine = rig.bed.engine();
    let mut way = |direction: Direction| -> anyhow::Result<Way> {
        let lent = engine.lend(memory.clone(), SlotId(direction as u32))?;
        let (address, stream) = (addresses[direction as usize], engine.create_stream()?);
        Ok(Way { direction, address, lent, stream })
    };
    let ways = [way(Direction::Store)?, way(Direction::Load)?];
    for way in &ways {
        let name = direction_name(way.direction);
        measure(ground, &mut rig, std::slice::from_ref(way), bytes, rounds, name)?;
    }
    measure(ground, &mut rig, &ways, bytes, rounds, "both at once")?;
    rig.bed.engine().give_back()?;
    Ok(Outcome::Done)
}

/// So many rounds of one copy each way, all ways at once. What is told of more than one is their sum.
fn measure(
    ground: &mut Ground,
    rig: &mut Rig,
    ways: &[Way],
    bytes: u64,
    num_rounds: usize,
    direction: &str,
) -> anyhow::Result<()> {
    let engine = rig.bed.engine();
    let mut rounds = Rounds::default();
    for round in 0..=num_rounds {
        let start = Instant::now();
        for way in ways {
            engine.copy(way.stream, way.direction, way.address, (way.lent, 0), bytes)?;
        }
        ways.iter().try_for_each(|way| engine.synchronize(way.stream))?;
        // The first one of a context takes longer than any other.
        if round > 0 {
            rounds.add((bytes * ways.len() as u64) as f64 / start.elapsed().as_secs_f64());
        }
    }
    let mut told: Row = row(json!({"direction": direction, "bytes": bytes}));
    rounds.put(&mut told, "bytes_per_s");
    ground.tell(&told)
}
