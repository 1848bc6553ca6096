//! Uploads: what arrives, and in which order.

use headroom_base::{AllocatorKind, MIB};
use headroom_device::cuda::upload::{PinnedBuffer, UploadSettings, copy_each_part, copy_pinned};
use headroom_device::cuda::{CudaContext, Uploader, gpus};
use headroom_device::device::UploadPart;
use headroom_device::{DeviceMemory, Holding, Settings};

use crate::stub::{Ever, Kind, bytes_at, context, ever, in_child, leaks, live};

/// Small buffers, so that each is used again and again.
pub(crate) const SMALL: UploadSettings = UploadSettings { threads: 4, buffer_bytes: 128 << 10 };

/// Sizes that fit a buffer, that do not, that leave nothing, little or much of one, and none at all.
pub(crate) const SIZES: [usize; 12] =
    [1, 512, 0, 100_001, 128 << 10, (128 << 10) + 1, 700_000, 3, 64 << 10, 511, 300_000, 513];

/// Contents that differ from place to place and from piece to piece.
pub(crate) fn contents(size: usize, piece: usize) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(31) ^ (at >> 9) ^ piece.wrapping_mul(97)) as u8 | 1).collect()
}

pub(crate) fn memory(context: &CudaContext, kind: AllocatorKind) -> Box<dyn DeviceMemory> {
    context.parts(Settings::of_kind(kind)).unwrap().memory
}

/// Room for pieces of these sizes.
pub(crate) fn room(memory: &mut dyn DeviceMemory, sizes: &[usize]) -> Vec<Holding> {
    sizes.iter().map(|size| memory.allocate(*size as u64).unwrap()).collect()
}

/// A context, its memory under the usual allocator, all pieces, and room for them.
pub(crate) fn with_room() -> (CudaContext, Box<dyn DeviceMemory>, Vec<Vec<u8>>, Vec<Holding>) {
    let context = context();
    let mut memory = memory(&context, AllocatorKind::Native);
    let to = room(memory.as_mut(), &SIZES);
    (context, memory, pieces(), to)
}

pub(crate) fn parts<'a>(to: &[Holding], pieces: &'a [Vec<u8>]) -> Vec<UploadPart<'a>> {
    to.iter().zip(pieces).map(|(to, contents)| UploadPart { to: *to, contents }).collect()
}

pub(crate) fn on_device(holding: &Holding, bytes: usize) -> Vec<u8> {
    let Holding::Allocated(allocation) = holding else { panic!("not of this process") };
    bytes_at(allocation.address().0, bytes as u64)
}

pub(crate) fn assert_arrived(to: &[Holding], pieces: &[Vec<u8>]) {
    for (index, (to, contents)) in to.iter().zip(pieces).enumerate() {
        assert!(
            on_device(to, contents.len()) == *contents,
            "piece {index} of {} bytes arrived otherwise",
            contents.len()
        );
    }
}

pub(crate) fn pieces() -> Vec<Vec<u8>> {
    SIZES.iter().enumerate().map(|(index, size)| contents(*size, index)).collect()
}

#[test]
fn contents_of_all_sizes_arrive_under_every_allocator() {
    in_child(module_path!(), "contents_of_all_sizes_arrive_under_every_allocator", &[], || {
        let (context, pieces) = (context(), pieces());
        for kind in AllocatorKind::ALL {
            let mut memory = memory(&context, kind);
            let to = room(memory.as_mut(), &SIZES);
            memory.upload(&parts(&to, &pieces)).unwrap();
            assert_arrived(&to, &pieces);
        }
    });
}

/// The driver that stands in takes no copy that goes beyond one allocation, as a real one takes none for its pool.
#[test]
fn pieces_that_lie_side_by_side_arrive_under_every_allocator() {
    in_child(module_path!(), "pieces_that_lie_side_by_side_arrive_under_every_allocator", &[], || {
        let context = context();
        let sizes = [2048, 512, 64 << 10, 1024, 512, 300 << 10];
        let mut pinned = PinnedBuffer::new(&context, sizes.iter().sum()).unwrap();
        pinned.copy_from_slice(&contents(sizes.iter().sum(), 3));
        let in_place = sizes.iter().scan(0, |start, size| {
            let piece = pinned[*start..*start + size].to_vec();
            *start += size;
            Some(piece)
        });
        let pieces: Vec<_> = in_place.collect();
        for kind in AllocatorKind::ALL {
            let mut memory = memory(&context, kind);
            let mut to = room(memory.as_mut(), &sizes.iter().rev().copied().collect::<Vec<_>>());
            to.reverse();
            let at = |to: &Holding| {
                let Holding::Allocated(allocation) = to else { panic!("not of this process") };
                (allocation.address().0, allocation.address().0 + to.bytes())
            };
            if kind == AllocatorKind::CudaMallocAsync {
                assert!(
                    to.windows(2).any(|pair| at(&pair[0]).1 == at(&pair[1]).0),
                    "{kind}: nothing lies side by side"
                );
            }
            memory.upload(&parts(&to, &pieces)).unwrap_or_else(|error| panic!("{kind}: {error}"));
            assert_arrived(&to, &pieces);
            let mut start = 0;
            let direct = to.iter().zip(sizes).map(|(to, size)| {
                start += size;
                UploadPart { to: *to, contents: &pinned[start - size..start] }
            });
            memory.upload(&direct.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{kind}, pinned: {error}"));
            assert_arrived(&to, &pieces);
        }
    });
}

#[test]
fn buffers_used_again_and_again_mix_nothing_up() {
    in_child(module_path!(), "buffers_used_again_and_again_mix_nothing_up", &[], || {
        let context = context();
        let mut memory = memory(&context, AllocatorKind::Native);
        for threads in [1, 2, 5] {
            let mut uploader = Uploader::with_settings(context.clone(), UploadSettings { threads, ..SMALL });
            let sizes = SIZES.repeat(2);
            let pieces: Vec<_> =
                sizes.iter().enumerate().map(|(index, size)| contents(*size, index + threads)).collect();
            let to = room(memory.as_mut(), &sizes);
            uploader.upload(&parts(&to, &pieces)).unwrap();
            assert_arrived(&to, &pieces);
            let pinned = live(Kind::Pinned);
            assert!(pinned >= 2 && pinned <= 2 * threads as u64, "{pinned} buffers of {threads} threads");
            assert_eq!(uploader.staging().pinned_bytes, pinned * SMALL.buffer_bytes as u64);
            assert_eq!(uploader.staging().threads, threads);
        }
    });
}

#[test]
fn a_partial_load_leaves_the_other_pieces_memory_alone() {
    in_child(module_path!(), "a_partial_load_leaves_the_other_pieces_memory_alone", &[], || {
        let (context, pieces) = (context(), pieces());
        let mut memory = memory(&context, AllocatorKind::Native);
        let mut uploader = Uploader::with_settings(context, SMALL);
        let to = room(memory.as_mut(), &SIZES);
        let every_second: Vec<_> = parts(&to, &pieces).into_iter().step_by(2).collect();
        uploader.upload(&every_second).unwrap();
        for (index, contents) in pieces.iter().enumerate() {
            let expected = if index % 2 == 0 { contents.clone() } else { vec![0; contents.len()] };
            assert!(on_device(&to[index], contents.len()) == expected, "piece {index}");
        }
    });
}

/// The driver that stands in takes ten thousand copies in a call at most.
#[test]
fn tens_of_thousands_of_small_pieces_go_up_in_several_calls() {
    in_child(module_path!(), "tens_of_thousands_of_small_pieces_go_up_in_several_calls", &[], || {
        let context = context();
        let mut memory = memory(&context, AllocatorKind::Native);
        let mut pinned = PinnedBuffer::new(&context, 12_000).unwrap();
        pinned.copy_from_slice(&contents(12_000, 5));
        let to = room(memory.as_mut(), &[1; 12_000]);
        let parts: Vec<_> =
            to.iter().zip(pinned.chunks(1)).map(|(to, contents)| UploadPart { to: *to, contents }).collect();
        memory.upload(&parts).unwrap();
        let arrived: Vec<_> = to.iter().flat_map(|to| on_device(to, 1)).collect();
        assert!(arrived == pinned[..], "a piece arrived otherwise");
    });
}

#[test]
fn pinned_contents_go_up_without_a_buffer_and_mix_with_others() {
    in_child(module_path!(), "pinned_contents_go_up_without_a_buffer_and_mix_with_others", &[], || {
        let context = context();
        let mut memory = memory(&context, AllocatorKind::Native);
        let mut uploader = Uploader::with_settings(context.clone(), SMALL);
        let mut buffers = [PinnedBuffer::new(&context, 900_000).unwrap(), PinnedBuffer::new(&context, 1).unwrap()];
        buffers[0].copy_from_slice(&contents(900_000, 1));
        buffers[1][0] = 9;
        // One behind the other on the device.
        let to = room(memory.as_mut(), &[1024, 2048, 512 << 10, 512, 100_000, 1]);
        let (large, small) = (&buffers[0], &buffers[1]);
        let direct = [
            UploadPart { to: to[0], contents: &large[..1024] },
            // Its neighbour both here and there; one here alone; one there alone; and one of another buffer.
            UploadPart { to: to[1], contents: &large[1024..3072] },
            UploadPart { to: to[3], contents: &large[3072..3584] },
            UploadPart { to: to[4], contents: &large[200_000..300_000] },
            UploadPart { to: to[2], contents: &large[300_000..300_000 + (512 << 10)] },
            UploadPart { to: to[5], contents: small },
        ];
        let (to, pinned): (Vec<_>, Vec<_>) = direct.iter().map(|part| (part.to, part.contents.to_vec())).unzip();
        uploader.upload(&direct).unwrap();
        assert_arrived(&to, &pinned);
        assert_eq!(live(Kind::Pinned), 2, "no buffer was needed");

        let (ordinary, more) = (pieces(), room(memory.as_mut(), &SIZES));
        let mut mixed = parts(&more, &ordinary);
        direct.iter().enumerate().for_each(|(index, part)| mixed.insert(index * 3, *part));
        uploader.upload(&mixed).unwrap();
        assert_arrived(&to, &pinned);
        assert_arrived(&more, &ordinary);
        drop((buffers, uploader));
        assert_eq!(live(Kind::Pinned), 0);
    });
}

#[test]
fn the_ring_is_kept_from_one_upload_to_the_next_and_freed_with_the_uploader() {
    let name = "the_ring_is_kept_from_one_upload_to_the_next_and_freed_with_the_uploader";
    in_child(module_path!(), name, &[], || {
        let (context, memory, pieces, to) = with_room();
        // One thread needs both its buffers; of several, some may come too late to need any.
        let mut uploader = Uploader::with_settings(context, UploadSettings { threads: 1, ..SMALL });
        assert_eq!(live(Kind::Pinned), 0, "nothing before it is needed");
        let held = || [Kind::Pinned, Kind::Streams, Kind::Events].map(live);
        uploader.upload(&parts(&to, &pieces)).unwrap();
        let after_one = held();
        assert_eq!(after_one[0], 2);
        let calls = ever(Ever::Calls);
        uploader.upload(&[]).unwrap();
        assert_eq!(ever(Ever::Calls), calls, "nothing to do asks nobody");
        uploader.upload(&parts(&to, &pieces)).unwrap();
        assert_eq!(held(), after_one);
        drop(uploader);
        assert_eq!(held(), [0, 1, 0], "the device's own stream is left");
        drop(memory);
        assert_eq!(leaks(), []);
        assert_eq!(ever(Ever::FreedUnderWork), 0);
    });
}

#[test]
fn an_upload_comes_after_the_work_that_was_given_before_it() {
    in_child(module_path!(), "an_upload_comes_after_the_work_that_was_given_before_it", &[], || {
        let context = context();
        let mut memory = memory(&context, AllocatorKind::Native);
        let to = room(memory.as_mut(), &[4096]);
        let Holding::Allocated(allocation) = to[0] else { panic!("not of this process") };
        let old = PinnedBuffer::new(&context, 4096).unwrap();
        context.bind().unwrap();
        // SAFETY: the buffer lives until the stream has been waited for below, and the memory is as long.
        let given = unsafe {
            let (address, from) = (allocation.address().0, old.as_ptr().cast());
            cudarc::driver::sys::cuMemcpyHtoDAsync_v2(address, from, old.len(), context.stream())
        };
        assert_eq!(given, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
        let new = vec![contents(4096, 3)];
        Uploader::new(context.clone()).upload(&parts(&to, &new)).unwrap();
        context.synchronize().unwrap();
        assert_arrived(&to, &new);
    });
}

#[test]
fn contents_that_do_not_fit_are_refused_before_anything_is_copied() {
    in_child(module_path!(), "contents_that_do_not_fit_are_refused_before_anything_is_copied", &[], || {
        let context = context();
        let mut memory = memory(&context, AllocatorKind::Native);
        let to = room(memory.as_mut(), &[1000, 1000]);
        let remote = Holding::Remote { id: 3, bytes: 4096 };
        let pieces = [contents(1000, 0), contents(2000, 1)];
        let mut uploader = Uploader::with_settings(context, SMALL);
        for second in [to[1], remote] {
            let error = uploader.upload(&parts(&[to[0], second], &pieces)).unwrap_err().to_string();
            assert!(error.contains("do not fit into") || error.contains("worker"), "{error}");
            assert!(on_device(&to[0], 1000).iter().all(|byte| *byte == 0));
        }
        assert_eq!(live(Kind::Pinned), 0);
    });
}

#[test]
fn devices_side_by_side_each_get_their_own() {
    in_child(module_path!(), "devices_side_by_side_each_get_their_own", &[], || {
        let contexts: Vec<_> = gpus().unwrap().iter().map(|gpu| CudaContext::open(gpu).unwrap()).collect();
        std::thread::scope(|scope| {
            for (index, context) in contexts.iter().enumerate() {
                scope.spawn(move || {
                    let mut memory = memory(context, AllocatorKind::Native);
                    let pieces: Vec<_> = SIZES.iter().map(|size| contents(*size, index)).collect();
                    let to = room(memory.as_mut(), &SIZES);
                    let mut uploader = Uploader::with_settings(context.clone(), SMALL);
                    for _ in 0..3 {
                        uploader.upload(&parts(&to, &pieces)).unwrap();
                    }
                    assert_arrived(&to, &pieces);
                });
            }
        });
        drop(contexts);
        assert_eq!(leaks(), []);
    });
}

#[test]
fn what_an_upload_is_held_against_arrives_too() {
    in_child(module_path!(), "what_an_upload_is_held_against_arrives_too", &[], || {
        let context = context();
        let mut memory = memory(&context, AllocatorKind::Native);
        let pieces = pieces();
        let to = room(memory.as_mut(), &SIZES);
        copy_each_part(&context, &parts(&to, &pieces)).unwrap();
        assert_arrived(&to, &pieces);
        let mut pinned = PinnedBuffer::new(&context, MIB as usize + 1).unwrap();
        pinned.copy_from_slice(&contents(MIB as usize + 1, 5));
        let to = room(memory.as_mut(), &[pinned.len()]);
        copy_pinned(&context, to[0], &pinned, 100_000).unwrap();
        assert_arrived(&to, &[pinned.to_vec()]);
        let error = copy_pinned(&context, room(memory.as_mut(), &[1])[0], &pinned, 100_000).unwrap_err().to_string();
        assert!(error.contains("do not fit"), "{error}");
        drop((memory, pinned, context));
        assert_eq!((leaks(), ever(Ever::FreedUnderWork)), (Vec::new(), 0));
    });
}
