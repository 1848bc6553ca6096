//! What arrives on a device, read back byte for byte: uploads of every shape, and models loaded from a file.

#![allow(clippy::print_stdout, reason = "the figures that were seen are the result")]

use std::path::Path;

use headroom_base::{AllocatorKind, Bytes};
use headroom_device::cuda::upload::{PinnedBuffer, UploadSettings, fill, read_back};
use headroom_device::cuda::{CudaContext, Uploader};
use headroom_device::device::UploadPart;
use headroom_device::weights::MappedWeights;
use headroom_device::{Cache, CacheSettings, Device, Holding, LockedModel, ModelKey, ModelSpec, Settings};
use libtest_mimic::Failed;
use safetensors::tensor::{Dtype, TensorView};

/// More than the staging buffers of 16 threads hold together, and no whole number of anything.
const LARGE_BYTES: usize = (300 << 20) + 12_345;

/// The size of a large tensor in half precision.
const PIECE_BYTES: usize = 2 << 20;

/// What memory is filled with before contents go there.
const OLD: u8 = 0xa5;

type Checked = Result<(), Failed>;

/// Contents in which no stretch looks like another.
fn contents(bytes: usize, seed: u64) -> Vec<u8> {
    let word = |index: usize| {
        let mixed = (index as u64 ^ seed << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
    };
    let mut contents: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(word).collect();
    contents.truncate(bytes);
    contents
}

/// Sizes from one byte on, hardly one of them even to anything.
fn odd_sizes(count: u64, most_bytes: u64) -> Vec<usize> {
    let scattered = |index: u64| (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    (0..count).map(|index| (scattered(index) % most_bytes + 1) as usize).collect()
}

fn device(context: &CudaContext, kind: AllocatorKind) -> Result<Device, Failed> {
    Ok(context.parts(Settings::of_kind(kind))?.build())
}

/// Room for pieces of these sizes, with something else in it.
fn room(context: &CudaContext, device: &Device, sizes: &[usize]) -> Result<Vec<Holding>, Failed> {
    let mut room = Vec::with_capacity(sizes.len());
    for size in sizes {
        let holding = device.allocate(*size as u64)?;
        fill(context, holding, OLD)?;
        room.push(holding);
    }
    Ok(room)
}

fn free(device: &Device, room: Vec<Holding>) -> Checked {
    Ok(room.into_iter().try_for_each(|holding| device.free(holding))?)
}

fn parts<'a>(to: &[Holding], pieces: &[&'a [u8]]) -> Vec<UploadPart<'a>> {
    to.iter().zip(pieces).map(|(to, contents)| UploadPart { to: *to, contents }).collect()
}

fn arrived(context: &CudaContext, what: &str, to: Holding, expected: &[u8]) -> Checked {
    let mut there = vec![0; expected.len()];
    read_back(context, to, 0, &mut there)?;
    match there.iter().zip(expected).position(|(there, expected)| there != expected) {
        None => Ok(()),
        Some(at) => {
            let (is, should) = (there[at], expected[at]);
            Err(format!("{what} of {} bytes: byte {at} is {is}, not {should}", expected.len()).into())
        }
    }
}

fn all_arrived(context: &CudaContext, what: &str, parts: &[UploadPart<'_>]) -> Checked {
    parts
        .iter()
        .enumerate()
        .try_for_each(|(index, part)| arrived(context, &format!("{what}, piece {index}"), part.to, part.contents))
}

pub(crate) fn one_large_part(context: &CudaContext) -> Checked {
    let memory = contents(LARGE_BYTES, 1);
    let mut pinned = PinnedBuffer::new(context, LARGE_BYTES)?;
    pinned.copy_from_slice(&contents(LARGE_BYTES, 2));
    for kind in AllocatorKind::ALL {
        let device = device(context, kind)?;
        let to = room(context, &device, &[LARGE_BYTES])?;
        for (source, contents) in [("pageable", &memory[..]), ("pinned", &pinned)] {
            let part = parts(&to, &[contents]);
            device.with_memory(|memory| memory.upload(&part))?;
            all_arrived(context, &format!("{kind}, {source}"), &part)?;
        }
        println!("{kind}: {LARGE_BYTES} bytes of pageable and of pinned memory arrived");
        free(&device, to)?;
    }
    Ok(())
}

/// Some of even sizes too: they lie side by side on the device and in a buffer.
pub(crate) fn many_odd_pieces(context: &CudaContext) -> Checked {
    let even = odd_sizes(200, 1_000).into_iter().map(|blocks| blocks * 512);
    let sizes: Vec<_> = odd_sizes(600, 700_001).into_iter().chain(even).collect();
    let memory: Vec<_> = sizes.iter().zip(10..).map(|(size, seed)| contents(*size, seed)).collect();
    let pieces: Vec<_> = memory.iter().map(Vec::as_slice).collect();
    for kind in AllocatorKind::ALL {
        let device = device(context, kind)?;
        let to = room(context, &device, &sizes)?;
        let parts = parts(&to, &pieces);
        device.with_memory(|memory| memory.upload(&parts))?;
        all_arrived(context, &kind.to_string(), &parts)?;
        println!("{kind}: {} pieces of {} arrived", sizes.len(), Bytes(sizes.iter().sum::<usize>() as u64));
        free(&device, to)?;
    }
    Ok(())
}

/// Once with room for every piece, so that what goes up lies apart on the device; once with room for those alone, so
/// that it lies apart only where it comes from, as in a partial load.
pub(crate) fn every_second_piece(context: &CudaContext) -> Checked {
    let memory = contents(64 * PIECE_BYTES, 3);
    let mut pinned = PinnedBuffer::new(context, memory.len())?;
    pinned.copy_from_slice(&memory);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pieces.safetensors");
    write_file(&path, &memory.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect::<Vec<_>>())?;
    let mapped = MappedWeights::open(&path)?;
    let of_file: Vec<_> = mapped.tensors().iter().map(|span| mapped.contents(span)).collect();
    let sources = [
        ("pinned", pinned.chunks(PIECE_BYTES).collect::<Vec<_>>()),
        ("pageable", memory.chunks(PIECE_BYTES).collect()),
        ("mapped", of_file),
    ];
    let device = device(context, AllocatorKind::Native)?;
    for (source, pieces) in &sources {
        let to = room(context, &device, &vec![PIECE_BYTES; pieces.len()])?;
        let every_second: Vec<_> = parts(&to, pieces).into_iter().step_by(2).collect();
        device.with_memory(|memory| memory.upload(&every_second))?;
        all_arrived(context, &format!("{source}, with gaps"), &every_second)?;
        for left_out in to.iter().skip(1).step_by(2) {
            arrived(context, &format!("{source}, a piece that was left out"), *left_out, &vec![OLD; PIECE_BYTES])?;
        }
        free(&device, to)?;

        let wanted: Vec<_> = pieces.iter().copied().step_by(2).collect();
        let to = room(context, &device, &vec![PIECE_BYTES; wanted.len()])?;
        let partial = parts(&to, &wanted);
        device.with_memory(|memory| memory.upload(&partial))?;
        all_arrived(context, &format!("{source}, without gaps"), &partial)?;
        free(&device, to)?;
        println!("{source}: {} of {} pieces arrived, with gaps and without", wanted.len(), pieces.len());
    }
    Ok(())
}

pub(crate) fn buffers_used_again(context: &CudaContext) -> Checked {
    let settings = UploadSettings { threads: 4, buffer_bytes: 128 << 10 };
    let mut uploader = Uploader::with_settings(context.clone(), settings);
    let device = device(context, AllocatorKind::Native)?;
    let sizes = odd_sizes(60, 700_001);
    let to = room(context, &device, &sizes)?;
    for round in 0..6 {
        let memory: Vec<_> = sizes.iter().zip(0..).map(|(size, at)| contents(*size, 1000 * (round + 1) + at)).collect();
        let parts = parts(&to, &memory.iter().map(Vec::as_slice).collect::<Vec<_>>());
        uploader.upload(&parts)?;
        all_arrived(context, &format!("upload {round}"), &parts)?;
    }
    println!("6 uploads of {} through {:?}", Bytes(sizes.iter().sum::<usize>() as u64), uploader.staging());
    free(&device, to)
}

fn write_file(path: &Path, tensors: &[Vec<u8>]) -> Checked {
    let mut views = Vec::with_capacity(tensors.len());
    for (index, contents) in tensors.iter().enumerate() {
        views.push((format!("tensor.{index:03}"), TensorView::new(Dtype::U8, vec![contents.len()], contents)?));
    }
    Ok(safetensors::serialize_to_file(views, None, path)?)
}

/// A model's file through the cache: first what fits beside a large request, then the rest of it, then all at once.
pub(crate) fn models_from_a_file(context: &CudaContext) -> Checked {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let sizes = odd_sizes(48, 5 << 20);
    let total_bytes = sizes.iter().sum::<usize>() as u64;
    let tensors: Vec<_> = sizes.iter().zip(70..).map(|(size, seed)| contents(*size, seed)).collect();
    write_file(&path, &tensors)?;
    for kind in AllocatorKind::ALL {
        let device = device(context, kind)?;
        // So that nothing is there by chance: blocks that lie idle are used again.
        let scrub = || free(&device, room(context, &device, &sizes)?);
        scrub()?;
        let cache = Cache::new(device.clone(), CacheSettings { floor_bytes: 0, ..CacheSettings::default() });
        cache.add(ModelSpec::safetensors("m", &path))?;
        let key = ModelKey::model("m");
        let idle = device.counters()?;
        let idle_bytes = idle.reserved.current - idle.allocated.current;
        let free_bytes = device.figures()?.driver_free_bytes + idle_bytes;
        let in_part = cache.lock(&key, Some(free_bytes - total_bytes / 2))?;
        let loaded = loaded(context, &in_part, &tensors)?;
        println!("{kind}: {loaded} of {} tensors loaded beside a large request", tensors.len());
        if loaded == 0 || loaded == tensors.len() {
            return Err(format!("{kind}: {loaded} of {} is no part", tensors.len()).into());
        }
        drop(in_part);
        let mut locked = cache.lock(&key, None)?;
        for manner in ["the rest of it", "all of it"] {
            if self::loaded(context, &locked, &tensors)? != tensors.len() {
                return Err(format!("{kind}, {manner}: not all of it is there").into());
            }
            println!("{kind}: {} arrived, {manner}", Bytes(total_bytes));
            drop(locked);
            cache.offload_unlocked()?;
            scrub()?;
            locked = cache.lock(&key, None)?;
        }
    }
    Ok(())
}

/// How many tensors of a locked model are on the device. Those that are there are compared.
fn loaded(context: &CudaContext, locked: &LockedModel, tensors: &[Vec<u8>]) -> Result<usize, Failed> {
    let mut loaded = 0;
    for weight in locked.weights() {
        let index: usize = weight.name.trim_start_matches("tensor.").parse()?;
        if let Some(holding) = weight.holding {
            arrived(context, &weight.name, holding, &tensors[index])?;
            loaded += 1;
        }
    }
    Ok(loaded)
}
