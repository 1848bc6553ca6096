//! Which libraries are found, in which version, and what is said where one is missing or wrong.

use headroom_device::cuda::libraries::{Library, LibraryError};
use headroom_device::cuda::{CudaUnavailable, gpus};
use headroom_device::readers::nvml_devices;

use crate::stub::{Libraries, in_child, with_libraries};

const KERNELS: [&str; 3] = ["libnvrtc.so", "libcublas.so", "libcudnn.so"];

#[test]
fn each_library_is_found_with_its_version_and_its_file() {
    let name = "each_library_is_found_with_its_version_and_its_file";
    with_libraries(&Libraries::StandIn(&KERNELS), module_path!(), name, &[], || {
        let versions = Library::ALL.map(|library| library.find().unwrap().version.as_deref());
        assert_eq!(versions, [Some("13.0"), Some("13.0"), Some("13.1.2"), Some("9.14.0"), None]);
        let driver = Library::Driver.find().unwrap();
        assert_eq!(driver.file_name, "libcuda.so");
        assert!(driver.path.as_ref().unwrap().is_absolute());
        // The stand-in's folder has no such file.
        assert!(Library::Nvrtc.find().unwrap().remark.as_ref().unwrap().contains("nvrtc-builtins"));
    });
}

#[test]
fn a_library_of_another_major_version_is_refused_with_both_versions() {
    let name = "a_library_of_another_major_version_is_refused_with_both_versions";
    let variables = [("HEADROOM_STUB_CUDNN", "8907"), ("HEADROOM_STUB_CUBLAS", "12")];
    with_libraries(&Libraries::StandIn(&KERNELS), module_path!(), name, &variables, || {
        let cudnn = Library::Cudnn.find().unwrap_err();
        assert!(matches!(cudnn, LibraryError::OtherVersion { needed: 9, .. }), "{cudnn}");
        let cublas = Library::Cublas.find().unwrap_err().to_string();
        assert!(cublas.contains("cuBLAS 12.1.2") && cublas.contains("needs version 13"), "{cublas}");
        Library::Nvrtc.find().unwrap();
    });
}

#[test]
fn missing_libraries_are_named_with_the_names_tried_and_where_they_come_from() {
    let name = "missing_libraries_are_named_with_the_names_tried_and_where_they_come_from";
    // Where the machine has them, there is nothing to see.
    with_libraries(&Libraries::StandIn(&[]), module_path!(), name, &[], || {
        for (library, stem, wheel) in
            [(Library::Nvrtc, "nvrtc", "cu13"), (Library::Cublas, "cublas", "cu13"), (Library::Cudnn, "cudnn", "cudnn")]
        {
            let Err(error) = library.find() else { continue };
            let text = error.to_string();
            assert!(matches!(error, LibraryError::Missing { .. }), "{text}");
            assert!(text.starts_with(&format!("{} was not found (tried lib{stem}.so, ", library.name())), "{text}");
            assert!(text.contains("LD_LIBRARY_PATH"), "{text}");
            assert!(text.contains(&format!("site-packages/nvidia/{wheel}/lib")), "{text}");
        }
    });
}

#[test]
fn no_driver_at_all_is_a_sentence_with_the_names_tried() {
    let name = "no_driver_at_all_is_a_sentence_with_the_names_tried";
    with_libraries(&Libraries::Machine, module_path!(), name, &[], || {
        // Where the machine has one, there is nothing to see.
        let Err(error) = gpus() else { return };
        let CudaUnavailable::NoDriver(LibraryError::Missing { tried, .. }) = &error else { return };
        let text = error.to_string();
        assert!(tried.contains(&"libcuda.so.1".to_owned()) && tried.contains(&"libnvcuda.so".to_owned()), "{text}");
        assert!(text.starts_with("the CUDA driver was not found (tried libcuda.so, libcuda.so.1, "), "{text}");
        assert!(text.contains(&format!(" and {} other names)", tried.len() - 4)), "{text}");
        assert!(text.ends_with("it comes with NVIDIA's driver (in a container: start it with the GPUs handed in)"));
    });
}

#[test]
fn a_library_without_any_function_is_refused_with_its_file_and_what_it_lacks() {
    let name = "a_library_without_any_function_is_refused_with_its_file_and_what_it_lacks";
    let all = &["libcuda.so", "libnvrtc.so", "libcublas.so", "libcudnn.so", "libnvidia-ml.so.1"];
    with_libraries(&Libraries::Hollow(all, ""), module_path!(), name, &[], || {
        for (library, file, function) in [
            (Library::Driver, "/libcuda.so", "cuDriverGetVersion"),
            (Library::Nvrtc, "/libnvrtc.so", "nvrtcVersion"),
            (Library::Cublas, "/libcublas.so", "cublasGetProperty"),
            (Library::Cudnn, "/libcudnn.so", "cudnnGetVersion"),
            (Library::Nvml, "/libnvidia-ml.so.1", "nvmlInit_v2"),
        ] {
            let text = library.find().unwrap_err().to_string();
            let expected = format!("{file}) cannot be used: it lacks the function {function}; put a whole one before");
            assert!(text.starts_with(&format!("{library} (/")) && text.contains(&expected), "{text}");
        }
        assert!(matches!(gpus().unwrap_err(), CudaUnavailable::NoDriver(LibraryError::LacksFunction { .. })));
        assert!(nvml_devices().unwrap_err().to_string().contains("nvmlInit_v2"));
    });
}

/// A library that tells a version and has nothing else, as C would have it.
const VERSIONS: &str = r#"
    #[unsafe(no_mangle)]
    pub extern "C" fn cublasGetProperty(property: i32, value: *mut i32) -> i32 {
        unsafe { value.write([13, 0, 0][property as usize]) };
        0
    }

    #[unsafe(no_mangle)]
    pub extern "C" fn cudnnGetVersion() -> usize {
        91400
    }

    #[unsafe(no_mangle)]
    pub extern "C" fn nvrtcVersion(_: *mut i32, _: *mut i32) -> i32 {
        7
    }

    #[unsafe(no_mangle)]
    pub extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
        unsafe { version.write(13_000) };
        0
    }
"#;

#[test]
fn a_library_that_tells_a_version_and_can_nothing_else_is_refused_and_one_that_tells_none() {
    let name = "a_library_that_tells_a_version_and_can_nothing_else_is_refused_and_one_that_tells_none";
    let all = &["libcuda.so", "libnvrtc.so", "libcublas.so", "libcudnn.so"];
    with_libraries(&Libraries::Hollow(all, VERSIONS), module_path!(), name, &[], || {
        for (library, function) in [
            (Library::Driver, "cuCtxGetCurrent"),
            (Library::Cublas, "cublasCreate_v2"),
            (Library::Cudnn, "cudnnConvolutionForward"),
        ] {
            let error = library.find().unwrap_err();
            let lacks = matches!(&error, LibraryError::LacksFunction { function: lacking, .. } if lacking == function);
            assert!(lacks, "{error}");
        }
        let nvrtc = Library::Nvrtc.find().unwrap_err();
        assert!(matches!(nvrtc, LibraryError::NoVersion { .. }), "{nvrtc}");
        let text = nvrtc.to_string();
        assert!(text.contains("libnvrtc.so) cannot be used: it does not tell its version"), "{text}");
    });
}

#[test]
fn what_is_called_lies_where_the_library_says_and_nothing_else_is_handed_out() {
    in_child(module_path!(), "what_is_called_lies_where_the_library_says_and_nothing_else_is_handed_out", &[], || {
        let driver = Library::Driver.find().unwrap();
        let addresses = Library::Driver.called_functions().iter().map(|function| driver.address(function).unwrap());
        let distinct: std::collections::BTreeSet<_> = addresses.collect();
        assert!(distinct.len() > 40);
        let error = driver.address(c"cuTheirsAlone").unwrap_err().to_string();
        assert!(error.contains("lacks the function cuTheirsAlone"), "{error}");
    });
}

#[test]
fn a_driver_that_is_no_library_gives_the_loaders_words() {
    let name = "a_driver_that_is_no_library_gives_the_loaders_words";
    with_libraries(&Libraries::Broken, module_path!(), name, &[], || {
        let Err(CudaUnavailable::NoDriver(LibraryError::Broken { reason, .. })) = gpus() else { return };
        assert!(reason.contains("libcuda.so"), "{reason}");
    });
}
