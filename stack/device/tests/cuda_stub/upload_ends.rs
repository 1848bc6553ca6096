//! Uploads that fail or are cancelled: what they leave behind.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headroom_base::AllocatorKind;
use headroom_device::DriverError;
use headroom_device::cuda::Uploader;
use headroom_device::cuda::upload::{PinnedBuffer, UploadSettings};
use headroom_device::device::{UploadPart, Uploaded};

use crate::stub::{Ever, Kind, context, ever, fail, has_failed, in_child, leaks, live};
use crate::uploads::{SIZES, SMALL, assert_arrived, contents, memory, on_device, parts, pieces, room};

#[test]
fn whichever_call_fails_nothing_is_left_and_the_next_upload_works() {
    in_child(module_path!(), "whichever_call_fails_nothing_is_left_and_the_next_upload_works", &[], || {
        let (context, pieces) = (context(), pieces());
        let mut memory = memory(&context, AllocatorKind::Native);
        let to = room(memory.as_mut(), &SIZES);
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
        let (context, pieces) = (context(), pieces());
        let mut memory = memory(&context, AllocatorKind::Native);
        let to = room(memory.as_mut(), &SIZES);
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
