//! A cache on each of two devices of one process, the first with room for a part of the models, the second for all.

use headroom_base::{Bytes, MIB};
use headroom_device::{Cache, CacheSettings, Device, ModelKey, ModelSpec};

/// What the first device is to have free when [`keep_to_their_own`] begins; the second needs more than
/// [`ALL_BYTES`] and [`WORKING_BYTES`].
pub(crate) const FIRST_FREE_BYTES: u64 = 1536 * MIB;

/// What every lock keeps free.
const WORKING_BYTES: u64 = 256 * MIB;

const MODELS: [&str; 4] = ["a", "b", "c", "d"];

/// Each model's, in pieces of 64 MiB.
const MODEL_BYTES: u64 = 512 * MIB;

/// What all models take together.
const ALL_BYTES: u64 = MODELS.len() as u64 * MODEL_BYTES;

/// Locks every model on both devices by turns, and tells what each cache did, or what it should not have.
pub(crate) fn keep_to_their_own(first: &Device, second: &Device) -> Result<String, String> {
    let free = |device: &Device| device.figures().map(|figures| figures.driver_free_bytes).map_err(|e| e.to_string());
    let before = [free(first)?, free(second)?];
    let caches = [first, second].map(|device| {
        Cache::new(device.clone(), CacheSettings { floor_bytes: WORKING_BYTES, ..CacheSettings::default() })
    });
    let mut moved = [0; 2];
    for model in MODELS {
        for (cache, moved) in caches.iter().zip(&mut moved) {
            cache.add(ModelSpec::of_bytes(model, MODEL_BYTES, 8)).map_err(|error| error.to_string())?;
            let locked = cache.lock(&ModelKey::model(model), Some(WORKING_BYTES));
            let locked = locked.map_err(|error| format!("{}: {error}", cache.device().id()))?;
            *moved += locked.report().moves.iter().map(|moved| moved.bytes).sum::<u64>();
        }
    }
    let resident = caches.each_ref().map(|cache| cache.models().iter().map(|model| model.resident_bytes).sum::<u64>());
    let taken = [before[0] - free(first)?, before[1] - free(second)?];
    let room = FIRST_FREE_BYTES - WORKING_BYTES;
    let told = |which: usize| {
        let (resident, moved, taken) = (Bytes(resident[which]), Bytes(moved[which]), Bytes(taken[which]));
        format!("{resident} of {} resident after {moved} were moved off, {taken} taken", Bytes(ALL_BYTES))
    };
    let told = format!("the first: {}; the second: {}", told(0), told(1));
    let expected = [[room, ALL_BYTES - room, room], [ALL_BYTES, 0, ALL_BYTES]];
    let seen = [0, 1].map(|which| [resident[which], moved[which], taken[which]]);
    if seen == expected { Ok(told) } else { Err(told) }
}
