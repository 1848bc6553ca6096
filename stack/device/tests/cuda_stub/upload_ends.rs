//! Uploads that fail or are cancelled: what they leave behind.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headroom_base::{AllocatorKind, MIB};
use headroom_device::cuda::Uploader;
use headroom_device::cuda::upload::{PinnedBuffer, UploadSettings};
use headroom_device::device::{UploadPart, Uploaded};
use headroom_device::driver::DriverCall;
use headroom_device::{DriverError, MemoryInfo};

use crate::stub::{Ever, Kind, context, ever, fail, has_failed, in_child, leaks, live, set_others_bytes};
use crate::uploads::{SIZES, SMALL, assert_arrived, contents, memory, on_device, parts, room, with_room};

#[test]
fn whichever_call_fails_nothing_is_left_and_the_next_upload_works() {
    in_child(module_path!(), "whichever_call_fails_nothing_is_left_and_the_next_upload_works", &[], || {
        let (context, mut memory, pieces, to) = with_room();
        let pinned = PinnedBuffer::new(&context, 2048).unwrap();
        let more = room(memory.as_mut(), &[2048]);
        let mut all = parts(&to, &pieces);
        all.push(UploadPart { to: more[0], contents: &pinned });
        let held = || [Kind::Pinned, Kind::Streams, Kind::Events].map(live);
        for warm in [false, true] {
            let failures = (1..).take_while(|n| {
                let mut uploader = Uploader::with_settings(context.clone(), UploadSettings { threads: 3, ..SMALL });
                if warm {
                    uploader.upload(&all).unwrap();
                }
                fail(*n, 999);
                let outcome = uploader.upload(&all);
                let failed = has_failed();
                fail(0, 0);
                assert_eq!(
                    outcome.is_err(),
                    failed,
                    "call {n} failed and nobody was told, or did not and somebody was"
                );
                if let Err(error) = outcome {
                    assert!(matches!(error, DriverError::Failed { code: 999, .. }), "{error}");
                    assert_eq!(held(), [1, 1, 0], "after call {n}");
                }
                uploader.upload(&all).unwrap();
                drop(uploader);
                assert_eq!(held(), [1, 1, 0]);
                failed
            });
            let failures = failures.count();
            assert!(failures > 20, "only {failures} calls failed");
            assert_arrived(&to, &pieces);
        }
        drop((memory, pinned, context));
        assert_eq!((leaks(), ever(Ever::FreedUnderWork)), (Vec::new(), 0));
    });
}

#[test]
fn an_upload_cancelled_at_whichever_chunk_leaves_nothing_pinned_and_can_be_made_again() {
    let name = "an_upload_cancelled_at_whichever_chunk_leaves_nothing_pinned_and_can_be_made_again";
    in_child(module_path!(), name, &[], || {
        let (context, memory, pieces, to) = with_room();
        let parts = parts(&to, &pieces);
        let held = || [Kind::Pinned, Kind::Streams, Kind::Events].map(live);
        for (threads, warm) in [(1, false), (1, true), (3, false), (3, true)] {
            let cancelled = (1..).take_while(|n| {
                let mut uploader = Uploader::with_settings(context.clone(), UploadSettings { threads, ..SMALL });
                if warm {
                    uploader.upload(&parts).unwrap();
                }
                let asked = AtomicUsize::new(0);
                let outcome = uploader.upload_unless(&parts, &|| asked.fetch_add(1, Ordering::Relaxed) + 1 >= *n);
                if outcome == Ok(Uploaded::Cancelled) {
                    assert_eq!(held(), [0, 1, 0], "cancelled at chunk {n}, warm: {warm}");
                    uploader.upload(&parts).unwrap();
                    assert!(live(Kind::Pinned) > 0);
                }
                assert_arrived(&to, &pieces);
                outcome.unwrap() == Uploaded::Cancelled
            });
            assert!(cancelled.count() >= 10, "{threads} threads have more chunks than that");
        }
        drop((memory, context));
        assert_eq!((leaks(), ever(Ever::FreedUnderWork)), (Vec::new(), 0));
    });
}

#[test]
fn an_upload_cancelled_by_another_thread_midway_begins_no_further_chunk() {
    let name = "an_upload_cancelled_by_another_thread_midway_begins_no_further_chunk";
    in_child(module_path!(), name, &[], || {
        let context = context();
        let mut memory = memory(&context, AllocatorKind::Native);
        let chunks = 10;
        let pieces = vec![contents(chunks * SMALL.buffer_bytes, 1)];
        let to = room(memory.as_mut(), &[pieces[0].len()]);
        let mut uploader = Uploader::with_settings(context, UploadSettings { threads: 1, ..SMALL });
        let (cancelled, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
        let met = Barrier::new(2);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                met.wait();
                cancelled.store(true, Ordering::Relaxed);
                met.wait();
            });
            uploader.upload_unless(&parts(&to, &pieces), &|| {
                if begun.fetch_add(1, Ordering::Relaxed) == 4 {
                    met.wait();
                    met.wait();
                }
                cancelled.load(Ordering::Relaxed)
            })
        });
        assert_eq!(outcome, Ok(Uploaded::Cancelled));
        let there = on_device(&to[0], pieces[0].len());
        let (copied, left) = there.split_at(4 * SMALL.buffer_bytes);
        assert!(copied == &pieces[0][..copied.len()], "what was begun is there");
        assert!(left.iter().all(|byte| *byte == 0), "more was begun");
        assert_eq!([Kind::Pinned, Kind::Streams, Kind::Events].map(live), [0, 1, 0]);
    });
}

#[test]
fn an_upload_goes_on_with_the_streams_and_buffers_that_there_is_room_for() {
    let name = "an_upload_goes_on_with_the_streams_and_buffers_that_there_is_room_for";
    // A buffer and a half.
    in_child(module_path!(), name, &[("HEADROOM_STUB_PINNED_KIB", "192")], || {
        let (context, mut memory, pieces, to) = with_room();
        let mut uploader = Uploader::with_settings(context.clone(), SMALL);
        for _ in 0..3 {
            uploader.upload(&parts(&to, &pieces)).unwrap();
            assert_arrived(&to, &pieces);
            assert_eq!([Kind::Pinned, Kind::Streams].map(live), [1, 1 + SMALL.threads as u64]);
        }
        drop(uploader);
        let to = room(memory.as_mut(), &SIZES);
        let MemoryInfo { free_bytes, .. } = context.memory().unwrap();
        for streams in [0, 1, 2] {
            set_others_bytes(0, free_bytes - streams * 2 * MIB);
            let mut uploader = Uploader::with_settings(context.clone(), SMALL);
            let outcome = uploader.upload(&parts(&to, &pieces));
            match outcome {
                Err(DriverError::OutOfMemory { free_bytes: 0, .. }) => assert_eq!(streams, 0),
                other => assert_eq!((other, live(Kind::Streams)), (Ok(()), 1 + streams)),
            }
        }
        assert_arrived(&to, &pieces);
    });
}

#[test]
fn an_upload_without_any_buffer_fails_and_leaves_nothing() {
    let name = "an_upload_without_any_buffer_fails_and_leaves_nothing";
    in_child(module_path!(), name, &[("HEADROOM_STUB_PINNED_KIB", "100")], || {
        let (context, _memory, pieces, to) = with_room();
        let error = Uploader::with_settings(context, SMALL).upload(&parts(&to, &pieces)).unwrap_err();
        assert!(matches!(error, DriverError::Failed { call: DriverCall::Pin, code: 2, .. }), "{error}");
        assert!(error.is_out_of_host_memory() && !error.is_out_of_memory(), "the card has room enough");
        assert_eq!([Kind::Pinned, Kind::Streams, Kind::Events].map(live), [0, 1, 0]);
    });
}

#[test]
fn no_room_for_an_event_is_out_of_memory() {
    in_child(module_path!(), "no_room_for_an_event_is_out_of_memory", &[], || {
        let (context, _memory, pieces, to) = with_room();
        // Before the first event is made, the thread's context is asked for.
        let outcomes = [1, 2, 3].map(|n| {
            fail(n, 2);
            let outcome = Uploader::with_settings(context.clone(), SMALL).upload(&parts(&to, &pieces));
            fail(0, 0);
            outcome
        });
        let is_out_of_memory = |outcome: &Result<_, _>| matches!(outcome, Err(DriverError::OutOfMemory { .. }));
        assert_eq!(outcomes.iter().filter(|outcome| is_out_of_memory(outcome)).count(), 1, "{outcomes:?}");
    });
}
