//! Kernels' texts made into a device's own code, once per process.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::nvrtc::sys::{self, nvrtcProgram};
use headroom_device::cuda::libraries::Library;

use crate::cuda::error::CudaError;
use crate::cuda::plan::call::{Instance, Part};

use super::answer::{Answer, answer};

const ELEMENTS: &str = include_str!("../kernels/elements.cu");
const COMMON: &str = include_str!("../kernels/common.cu");

/// Code of a device, with one or more kernels in it.
pub(in crate::cuda) type Code = Arc<Vec<u8>>;

/// Code by compute capability and kernel.
type CodeByName = HashMap<(u32, u32, String), Code>;

/// The code of every kernel made so far.
static MADE: LazyLock<Mutex<CodeByName>> = LazyLock::new(Mutex::default);

/// The text of kernels: what all share, the parts that they are made of, and themselves.
pub(in crate::cuda) fn source(instances: &[&Instance]) -> String {
    let mut parts: Vec<Part> = instances.iter().filter_map(|instance| instance.part).collect();
    parts.sort_unstable();
    parts.dedup();
    let mut text = format!("{ELEMENTS}\n{COMMON}\n");
    for part in parts {
        text.push_str(part.source());
        text.push('\n');
    }
    for instance in instances {
        text.push_str(&instance.text);
    }
    text
}

/// The code in which each of these kernels lies. Those that no code of this process has yet are made together.
///
/// # Errors
/// When the compiler refuses: a defect of headroom, or a compiler too old for the device.
pub(in crate::cuda) fn code(capability: (u32, u32), wanted: &[&Instance]) -> Result<Vec<Code>, CudaError> {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let key = |instance: &Instance| (capability.0, capability.1, instance.name.clone());
    let mut missing: Vec<&Instance> =
        wanted.iter().copied().filter(|instance| !made.contains_key(&key(instance))).collect();
    missing.sort_by(|a, b| a.name.cmp(&b.name));
    missing.dedup_by(|a, b| a.name == b.name);
    if !missing.is_empty() {
        let names = || missing.iter().map(|instance| instance.name.as_str()).collect::<Vec<_>>().join(", ");
        let code = Arc::new(compile(&source(&missing), capability, names)?);
        made.extend(missing.iter().map(|instance| (key(instance), Arc::clone(&code))));
    }
    Ok(wanted.iter().filter_map(|instance| made.get(&key(instance)).cloned()).collect())
}

/// The architecture of which a device of this compute capability runs the code: the greatest that the compiler knows of
/// its major version and not above it. Architectures are numbered as in `sm_120`, which is 12.0.
fn architecture((major, minor): (u32, u32), known: &[u32]) -> Option<u32> {
    known.iter().copied().filter(|known| known / 10 == major && known % 10 <= minor).max()
}

/// The architecture to make code of for a device.
fn architecture_for(capability: (u32, u32)) -> Result<u32, CudaError> {
    let known = known_architectures()?;
    architecture(capability, &known).ok_or_else(|| {
        let version = Library::Nvrtc.find().ok().and_then(|found| found.version.as_deref());
        let compiler = format!("{} {}", Library::Nvrtc, version.unwrap_or("of unknown version"));
        let known: Vec<_> = known.iter().map(|known| format!("{}.{}", known / 10, known % 10)).collect();
        let (major, minor) = capability;
        CudaError::CompilerTooOld { compiler, major, minor, known: known.join(", ") }
    })
}

fn known_architectures() -> Result<Vec<u32>, CudaError> {
    let mut count = 0;
    // SAFETY: the place is valid.
    check("nvrtcGetNumSupportedArchs", unsafe { answer!(sys::nvrtcGetNumSupportedArchs(&raw mut count)) })?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many as the compiler said.
    check("nvrtcGetSupportedArchs", unsafe { answer!(sys::nvrtcGetSupportedArchs(known.as_mut_ptr())) })?;
    Ok(known.into_iter().filter_map(|known| u32::try_from(known).ok()).collect())
}

/// A program of the compiler, given back when dropped.
struct Source(nvrtcProgram);

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: the program is this value's own and was made by the compiler.
        let _ = unsafe { answer!(sys::nvrtcDestroyProgram(&raw mut self.0)) };
    }
}

fn check(call: &str, answer: Answer) -> Result<(), CudaError> {
    super::answer::check(Library::Nvrtc, call, answer)
}

fn compile(text: &str, capability: (u32, u32), names: impl Fn() -> String) -> Result<Vec<u8>, CudaError> {
    let text_with_zero = |text: &str| {
        CString::new(text).map_err(|_| CudaError::Compilation { kernels: names(), log: "a zero byte".into() })
    };
    let text = text_with_zero(text)?;
    let architecture = architecture_for(capability)?;
    let options = [text_with_zero(&format!("--gpu-architecture=sm_{architecture}"))?, text_with_zero("--std=c++17")?];
    let option_texts = options.each_ref().map(|option| option.as_ptr());
    let mut program = Source(std::ptr::null_mut());
    // SAFETY: the texts end in a zero byte and live until the program is given back at the end of this function; no
    // headers are handed over.
    unsafe {
        let headers = std::ptr::null();
        let made = answer!(sys::nvrtcCreateProgram(
            &raw mut program.0,
            text.as_ptr(),
            c"headroom.cu".as_ptr(),
            0,
            headers,
            headers
        ));
        check("nvrtcCreateProgram", made)?;
    }
    // SAFETY: the program was just made; the options are as many as is said and live through the call.
    let compiled =
        unsafe { answer!(sys::nvrtcCompileProgram(program.0, option_texts.len() as i32, option_texts.as_ptr())) };
    if let Err(refusal) = check("nvrtcCompileProgram", compiled) {
        let log = format!("{refusal}: {}", log_of(&program)?);
        return Err(CudaError::Compilation { kernels: names(), log });
    }
    let mut bytes = 0;
    // SAFETY: the program was compiled for a device, not for a virtual one, so it has code; the place is valid.
    check("nvrtcGetCUBINSize", unsafe { answer!(sys::nvrtcGetCUBINSize(program.0, &raw mut bytes)) })?;
    let mut code = vec![0_u8; bytes];
    // SAFETY: the code is as long as the compiler said.
    check("nvrtcGetCUBIN", unsafe { answer!(sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast::<c_char>())) })?;
    Ok(code)
}

fn log_of(program: &Source) -> Result<String, CudaError> {
    let mut bytes = 0;
    // SAFETY: the program lives; the place is valid.
    check("nvrtcGetProgramLogSize", unsafe { answer!(sys::nvrtcGetProgramLogSize(program.0, &raw mut bytes)) })?;
    let mut log = vec![0_u8; bytes];
    // SAFETY: the log is as long as the compiler said.
    check("nvrtcGetProgramLog", unsafe {
        answer!(sys::nvrtcGetProgramLog(program.0, log.as_mut_ptr().cast::<c_char>()))
    })?;
    Ok(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_made_of_the_greatest_known_architecture_of_the_major_version_that_is_not_above_the_devices() {
        const KNOWN: [u32; 12] = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];
        for (capability, chosen) in [
            ((8, 0), Some(80)),
            ((8, 5), Some(80)),
            ((8, 9), Some(89)),
            ((9, 0), Some(90)),
            ((10, 2), Some(100)),
            ((10, 9), Some(103)),
            ((12, 0), Some(120)),
            ((12, 3), Some(121)),
            ((7, 0), None),
            ((13, 0), None),
            ((1, 20), None),
        ] {
            assert_eq!(architecture(capability, &KNOWN), chosen, "{capability:?}");
        }
        assert_eq!(architecture((9, 0), &[]), None);
        assert_eq!(architecture((8, 6), &[90, 86, 80]), Some(86), "in whatever order");
    }
}
