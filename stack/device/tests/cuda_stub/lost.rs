//! A context that is lost: everything that works in it fails with the first failure's code, and everything ends.

use headroom_base::{AllocatorKind, MIB};
use headroom_device::cuda::{CudaContext, Uploader, gpus};
use headroom_device::device::UploadPart;
use headroom_device::{Device, DriverError, Holding, Settings};

use crate::stub::{Ever, context, ever, fail, in_child};

/// What everything fails with after an illegal address.
const ILLEGAL_ADDRESS: i32 = 700;

/// Whatever needs the driver, on a device that holds something.
fn calls(
    uploader: &mut Uploader,
    context: &CudaContext,
    (device, held): &(Device, Holding),
) -> Vec<(&'static str, Option<String>)> {
    fn said<T, E: ToString>(result: Result<T, E>) -> Option<String> {
        result.err().map(|error| error.to_string())
    }
    let contents = vec![7; 3 << 20];
    let part = UploadPart { to: *held, contents: &contents };
    vec![
        ("upload", said(uploader.upload(&[part]))),
        ("allocate", said(device.allocate(700 * MIB))),
        ("figures", said(device.figures())),
        ("empty the cache", said(device.empty_cache())),
        ("free memory", said(context.memory())),
        ("ballast", said(context.ballast(MIB))),
        ("synchronize", said(context.synchronize())),
    ]
}

#[test]
fn after_an_illegal_address_everything_fails_with_it_and_ends() {
    in_child(module_path!(), "after_an_illegal_address_everything_fails_with_it_and_ends", &[], || {
        let context = context();
        let on_device = |kind| {
            let device = context.parts(Settings::of_kind(kind)).unwrap().build();
            let held = device.allocate(50 * MIB).unwrap();
            (device, held)
        };
        let devices = AllocatorKind::ALL.map(on_device);
        let mut uploader = Uploader::new(context.clone());
        for device in &devices {
            for (call, error) in calls(&mut uploader, &context, device) {
                assert_eq!(error, None, "{call}");
            }
            // For the cache to give back, beside what is held.
            let freed = [4, 90].map(|mib| device.0.allocate(mib * MIB).unwrap());
            freed.into_iter().for_each(|holding| device.0.free(holding).unwrap());
        }
        fail(1, ILLEGAL_ADDRESS);
        let first = context.synchronize().unwrap_err();
        assert!(matches!(first, DriverError::Failed { code: 700, .. }), "{first}");
        fail(0, 0);
        for (kind, device) in AllocatorKind::ALL.into_iter().zip(&devices) {
            for (call, error) in calls(&mut uploader, &context, device) {
                let lost = error.as_ref().is_some_and(|error| error.contains("code 700"));
                assert!(lost, "{kind}: {call} is answered {error:?}");
            }
        }
        let other = gpus().unwrap().remove(1);
        assert!(matches!(CudaContext::open(&other), Err(DriverError::Failed { code: 700, .. })));
        let before = ever(Ever::Calls);
        drop((devices, uploader, context));
        assert!(ever(Ever::Calls) > before, "nothing was even offered back");
    });
}
